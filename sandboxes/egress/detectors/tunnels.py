"""Ways in from outside: tunnel programs and services, SSH out of the sandbox, reverse shells, silent long
connections."""

import ast
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from sandboxes.egress.detectors.actions import Actions, actions_of, dotted, outermost_calls
from sandboxes.egress.detectors.destinations import KEPT, below, is_here, names_of, where
from sandboxes.egress.detectors.detector import Context, Detector
from sandboxes.egress.detectors.finding import Deed, DetectorEvent, Finding, RuleInfo, finding
from sandboxes.egress.detectors.shell import SHELLS, Command
from sandboxes.egress.record import EgressRecord

PROGRAM = RuleInfo(
    "tunnel-program",
    "a tunnel is opened out of the sandbox",
    "critical",
    "Controllability",
    "T1572",
    "ngrok, frp, chisel and their like, and copies of them by what they are told; `ssh -R -D -L -w` and the "
    "same by `-o`",
    "a program of one's own inside TLS to an allowed name",
    "`tunnels.PROGRAMS`",
)
SHELL = RuleInfo(
    "reverse-shell",
    "a shell is given to somebody outside",
    "critical",
    "Controllability",
    "T1059.004",
    "a shell, or an interpreter without a script, whose input is a socket, in whatever language it was "
    "started; a program of one's own, whatever its name, that gets a connection to outside as input and output; a "
    "shell in pipes of a program that calls outside; by text `/dev/tcp`, netcat, socat, openssl, "
    "telnet and one-liners",
    "a shell that is part of the program that holds the connection and starts nothing",
    "`without`",
)
SERVICE = RuleInfo(
    "tunnel-service",
    "a tunnel service is addressed by name",
    "critical",
    "Controllability",
    "T1572",
    "denied tunnel services in DNS, SNI, Host",
    "services with names of their own",
    "allow them by a rule",
)
BANNER = RuleInfo(
    "ssh-outbound",
    "the sandbox speaks SSH to somebody outside",
    "critical",
    "Controllability",
    "T1572",
    "an SSH banner out of the sandbox: on port 22 allowed ones are fine and denied ones (`git clone git@...`) a "
    "warning, on any other port it is critical",
    "SSH inside TLS",
    "`without`",
)
QUIET = RuleInfo(
    "quiet-connection",
    "a long connection that carries keep-alives only",
    "warning",
    "Controllability",
    "T1572",
    "10 minutes of small pieces at less than 20 bytes a second",
    "tunnels that are used",
    "`tunnels.QUIET_*`",
)

PROGRAMS = frozenset({
    "ngrok", "frpc", "frps", "chisel", "cloudflared", "localtunnel", "lt", "bore", "gost", "rathole", "ligolo",
    "ligolo-ng", "agent-ligolo", "autossh", "sshuttle", "tmate", "tailscaled", "tailscale", "zerotier-one",
    "zerotier-cli", "wg-quick", "wireguard", "wireguard-go", "boringtun", "plink", "slipstream", "rustdesk",
    "anydesk", "frp", "nps", "npc", "openvpn", "iodine", "iodined", "dnscat", "dnscat2", "dns2tcpc", "ptunnel",
    "ptunnel-ng", "icmptunnel", "hans", "pinggy", "playit", "pagekite", "pagekite.py", "revsocks", "reGeorg",
    "proxytunnel", "corkscrew", "inlets", "pwnat", "loclx", "tor", "teleconsole", "gsocket", "gs-netcat", "wstunnel",
    "udp2raw", "v2ray", "xray", "sing-box", "shadowsocks", "ss-local",
})  # fmt: skip
SERVICES = (
    "ngrok.io", "ngrok.com", "ngrok.app", "ngrok.dev", "ngrok-free.app", "ngrok-free.dev", "ngrok-agent.com",
    "trycloudflare.com", "argotunnel.com", "localtunnel.me", "loca.lt", "serveo.net", "pinggy.io", "pinggy.link",
    "bore.pub", "localhost.run", "lhr.life", "tailscale.com", "zerotier.com", "playit.gg", "pagekite.net",
    "pagekite.me", "tmate.io", "remote.it", "telebit.io", "packetriot.com", "loclx.io", "localxpose.io",
    "devtunnels.ms", "expose.dev", "portmap.io", "gs.thc.org", "torproject.org", "onion", "webhookrelay.com",
    "inlets.dev", "tunnelmole.com", "tunnelto.dev", "tunnel.us.ngrok.com", "remotemoe.net",
    "rel.tunnels.api.visualstudio.com",
)  # fmt: skip
NETCATS = frozenset({"nc", "ncat", "netcat", "nc.traditional", "socat"})
MODULES = frozenset({"pyngrok", "flask_ngrok", "pycloudflared", "localtunnel", "sshtunnel"})
QUIET_S = 600.0
QUIET_STATEMENTS = 5
QUIET_BYTES_PER_PACKET = 96
QUIET_BYTES_PER_S = 20.0

_SSH_FORWARD = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*[RDLw](?:\S*)?")
_SSH_VALUED = re.compile(r"-[46AaCfGgKkMNnqsTtVvXxYy]*[BbcEeFIiJlmOopQSWPp]")
_DEVICE = re.compile(r"/dev/(?:tcp|udp)/([^\s/]+)/(\d+)")


@dataclass(slots=True)
class _Connection:
    began: float
    statements: int = 0
    bytes_both: int = 0
    bytes_up: int = 0
    packets_up: int = 0


class Tunnels(Detector):
    """Misses a program of one's own over TLS to an allowed name, and SSH inside TLS."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (PROGRAM, SHELL, SERVICE, BANNER, QUIET)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._open: OrderedDict[int, _Connection] = OrderedDict()

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if not isinstance(event, EgressRecord):
            yield from _command(event)
        else:
            yield from _service(event)
            yield from _banner(event)
            yield from self._quiet(event)

    def _quiet(self, record: EgressRecord) -> Iterator[Finding]:
        if record.phase != "traffic" or record.spread is not None or record.count > 1:
            return
        number = record.attempt.sequence
        connection = self._open.setdefault(number, _Connection(record.attempt.at))
        if len(self._open) > KEPT:
            self._open.popitem(last=False)
        connection.statements += record.bytes_up > 0
        connection.bytes_up += record.bytes_up
        connection.bytes_both += record.bytes_up + record.bytes_down
        connection.packets_up += record.packets_up
        if record.ended is not None:
            self._open.pop(number, None)
        lasted_s = record.last_at - connection.began
        if not _is_quiet(connection, lasted_s):
            return
        summary = f"{lasted_s:.0f} s, {connection.packets_up} pieces, {connection.bytes_up} bytes sent"
        yield finding(QUIET, record, where(record.attempt), [record.attempt.target, summary])


def _is_quiet(connection: _Connection, lasted_s: float) -> bool:
    return (
        lasted_s >= QUIET_S
        and connection.statements >= QUIET_STATEMENTS
        and connection.bytes_up <= QUIET_BYTES_PER_PACKET * max(connection.packets_up, 1)
        and connection.bytes_both <= QUIET_BYTES_PER_S * lasted_s
    )


def _service(record: EgressRecord) -> Iterator[Finding]:
    for name in sorted(names_of(record.attempt)):
        if (service := below(name, SERVICES)) is not None and not record.decision.allowed:
            yield finding(SERVICE, record, service, [record.attempt.target, name])
    return


def _banner(record: EgressRecord) -> Iterator[Finding]:
    """On port 22 an allowed one is policy, and a denied one may be ``git clone git@...``: a warning."""
    attempt = record.attempt
    if not record.opening_up.startswith(b"SSH-"):
        return
    if attempt.port == 22 and record.decision.allowed:
        return
    evidence = [attempt.target, record.opening_up.decode("latin-1")]
    yield finding(BANNER, record, where(attempt), evidence, "warning" if attempt.port == 22 else "critical")


def _command(event: Deed) -> Iterator[Finding]:
    did = actions_of(event)
    for command in did.commands:
        if _opens_tunnel(command):
            yield finding(PROGRAM, event, command.program, [command.text])
    for module in sorted(did.imports):
        if module.partition(".")[0] in MODULES:
            yield finding(PROGRAM, event, module, [f"import {module}"])
    for call in did.calls:
        if call.callee.endswith("request_port_forward"):
            yield finding(PROGRAM, event, call.callee, [call.callee])
    shell = _reverse_shell(did)
    if shell is not None:
        yield finding(SHELL, event, "shell", [shell])


def _opens_tunnel(command: Command) -> bool:
    if command.program in {"npx", "bunx", "pnpx"} or (command.program == "docker" and "run" in command.arguments):
        return any(
            word.rsplit("/", 1)[-1].partition(":")[0].partition("@")[0] in PROGRAMS for word in command.arguments
        )
    if command.program == "ssh":
        return ssh_forwards(command.arguments)
    if command.program == "code":
        return command.arguments[:1] == ("tunnel",)
    if command.program in {"lt", "bore", "gost", "hans", "tor", "agent-ligolo"}:  # short: others may be called so
        return bool(command.arguments) and not {"--help", "-h", "--version"} & set(command.arguments)
    return (
        is_tunnel_by_arguments(command)
        or command.program in PROGRAMS
        and not {"--help", "--version", "version"} & set(command.arguments)
    )


_ARGUMENTS = re.compile(
    r"^(?:client|server) (?:--?\S+ (?:\S+ )?){0,6}(?:https?://|wss?://)?\S+(?::\d+)? (?:R:)?\S*(?:\bsocks\b|:\d+)"
    r"|^server\b.* --(?:reverse|socks5)\b|^tunnel(?: --?\S+(?: \S+)?){0,4} (?:run\b|--url[ =])|^(?:http|tcp"
    r"|tls) \S+.* --(?:authtoken|domain|hostname|subdomain|region|log)\b"
    r"|(?:^| )(?:-c|--config)[ =]\S*(?:frpc|frps|ngrok|chisel|cloudflared|wg\d|rathole|bore|sing-?box|v2ray"
    r"|xray)[^/ ]*\.(?:ini|toml|ya?ml|json|conf)"
    r"|^local \d+ --to \S+|^--port[ =]\d+ --subdomain[ =]|(?:^| )-[fNTqnv]*R ?(?:\S+:)?\d+:[\w.\[\]-]+:\d+"
    r"|(?:^| )-[fNTqnvC]*D ?(?:\S+:)?\d{3,5} \S*@"
    r"|(?:^| )(?:-L|-F)[ =]?(?:\w+(?:\+\w*)?://)\S*:\d+"
    r"|--dns (?:server|domain|host)=|(?:^| )--secret[ =]\S+ \S+\.\S+|--(?:SocksPort|socks5-server|tun-fd"
    r"|ControlPort|HiddenServiceDir)\b"
    r"|^(?:up|setconf|set|syncconf) wg\d|\btype (?:wireguard|tun|gre|ipip|vxlan|sit)\b|^tuntap add"
    r"|^link add \S+ type (?:wireguard|gre|ipip|vxlan|sit|ip6tnl)"
)
_OTHERS = frozenset({
    "curl", "wget", "git", "python", "python3", "pytest", "pip", "grep", "docker", "make", "node", "npm", "sed",
    "awk", "cut", "gcc", "cc", "g++",
    "ld", "tar", "rsync", "redis-cli", "psql", "mysql", "java", "cmake", "sort", "echo", "printf", "cat", "ls",
    "find", "perl",
    "collect2", "cc1", "as", "clang", "nice", "date", "tail", "head",
})  # fmt: skip
"""Programs whose own options look like a tunnel's."""


def is_tunnel_by_arguments(command: Command) -> bool:
    """A copy under another name is still told what to do in its own words."""
    return command.program not in _OTHERS | SHELLS and _ARGUMENTS.search(" ".join(command.arguments)) is not None


def ssh_forwards(arguments: tuple[str, ...]) -> bool:
    """Return whether ``ssh`` is asked for -R, -D, -L or -w, or for the same by -o; only before the host."""
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        word = arguments[place]
        if _SSH_FORWARD.fullmatch(word) and not _SSH_VALUED.match(word):
            return True
        option = arguments[place + 1] if word == "-o" and place + 1 < len(arguments) else word
        if re.match(r"(-o)?(RemoteForward|DynamicForward|LocalForward|Tunnel)\b", option):
            return True
        place += 2 if _SSH_VALUED.fullmatch(word) else 1
    # People also write options behind the host.
    return any(re.fullmatch(r"-[fNqTn]*R", word) for word in arguments[place:])


def _reverse_shell(did: Actions) -> str | None:
    devices = [
        (command, match)
        for command in did.commands
        for path in (*command.writes, *command.reads)
        if (match := _DEVICE.match(path)) is not None and not is_here(match[1])
    ]
    runs_what_it_read = any(command.program.startswith("$") for command in did.commands)
    takes = any(
        "<&" in command.arguments and (runs_what_it_read or command.program in {*SHELLS, "read"})
        for command in did.commands
    )
    for command, match in devices:
        if command.program in SHELLS or (takes and "exec" in command.wrappers):
            return match[0]
    for before, command in zip(did.commands, did.commands[1:], strict=False):
        if command.piped and _talks(command) and before.program in SHELLS and "-i" in before.arguments:
            return f"{before.text} | {command.text}"
        if command.piped and command.program in SHELLS and not command.arguments and _talks(before):
            return f"{before.text} | {command.text}"
    for command in did.commands:
        shells = re.search(r"\b(?:EXEC|SYSTEM):", command.text, re.I)
        if command.program == "socat" and shells and re.search(r"\b(?:TCP|OPENSSL|UDP)\w*:", command.text, re.I):
            if "LISTEN" not in command.text.upper():
                return command.text
        if command.program in NETCATS:
            if any(re.fullmatch(r"-[a-z]*[ec]", word) for word in command.arguments) or "--exec" in command.arguments:
                return command.text
        if command.program in {"perl", "ruby", "php", "lua", "awk", "gawk"} and re.search(
            r"sock(?:et|open).{0,400}(?:/bin/(?:ba)?sh|exec|fdopen.{0,200}system)|/inet/tcp/0/",
            command.text,
            re.I | re.S,
        ):
            return command.text
    return _python_shell(did)


def _talks(command: Command) -> bool:
    """Speaks to another machine over its own input and output."""
    talks = command.program in NETCATS | {"telnet"} or command.text.startswith("openssl s_client")
    listens = any(re.fullmatch(r"-[a-z]*l[a-z]*", word) for word in command.arguments)
    return talks and not listens and not any(is_here(word.partition(":")[0]) for word in command.arguments)


def _python_shell(did: Actions) -> str | None:
    connects = [call for call in did.calls if call.callee.rpartition(".")[2] in {"connect", "create_connection"}]
    if not connects or all(any(is_here(text) for text in call.strings) for call in connects):
        return None
    called = {call.callee.rpartition(".")[2] for call in did.calls}
    started = any(command.program in {"sh", "bash", "dash"} for command in did.commands)
    if "dup2" in called and (started or "spawn" in called):
        return "socket.connect, os.dup2 and a shell"
    for node, inner in (found for tree in did.trees for found in outermost_calls(tree, _starts)):
        words = {word.arg: dotted(word.value) for word in node.keywords}
        if started and words.get("stdin", "").split(".")[-1] not in {"", "PIPE", "DEVNULL"}:
            if words["stdin"] == words.get("stdout"):
                return f"line {node.lineno}: a shell whose input and output is a socket"
        if any(isinstance(part, ast.Call) and dotted(part.func).endswith(".recv") for part in inner):
            return f"line {node.lineno}: what a socket receives is run by a shell"
    return None


def _starts(call: ast.Call, callee: str) -> bool:
    """With input and output of its own, or by a shell."""
    words = {word.arg: word.value for word in call.keywords}
    shell = words.get("shell")
    by_shell = isinstance(shell, ast.Constant) and shell.value is True
    return by_shell or "stdin" in words or callee in {"os.system", "os.popen"}
