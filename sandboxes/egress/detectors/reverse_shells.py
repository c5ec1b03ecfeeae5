"""Shells whose input or output is somebody else: told by their descriptors, in whatever language they were started."""

import re
from collections.abc import Iterator

from sandboxes.egress.detectors.destinations import is_here, special_kind
from sandboxes.egress.detectors.detector import Context, Detector
from sandboxes.egress.detectors.finding import DetectorEvent, Finding, finding
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.shell import SHELLS, Command
from sandboxes.egress.detectors.tunnels import NETCATS, SHELL
from sandboxes.egress.record import EgressRecord

INTERPRETERS = re.compile(
    r"(?:python[\d.]*|pypy3?|perl[\d.]*|ruby[\d.]*|node|nodejs|php[\d.]*|lua[\d.]*|tclsh[\d.]*|irb|busybox|expect)$"
)
OWN_FOLDERS = ("/work/", "/tmp/", "/dev/shm/", "/var/tmp/", "memfd:")
"""Where programs lie that a policy made or copied."""
_TALKERS = NETCATS | {"telnet", "openssl", "websocat", "gnutls-cli"}
_AWK = re.compile(r"(?:g|m|n)?awk$")
_VALUED = frozenset({"-o", "-O", "--rcfile", "--init-file", "-W", "-X", "-c"})


class ReverseShells(Detector):
    """Misses a shell that is part of the program that holds the connection, for then none is started."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._waiting: tuple[str | None, str] | None = None
        """The tool call in which a shell was started that takes orders from another program, and both."""
        self._called: tuple[str | None, str] | None = None
        """The tool call in which somebody was called outside, and whom."""
        self._fifo: str | None = None
        """The tool call that made a named pipe."""

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if isinstance(event, EgressRecord):
            yield from self._connected(event)
            return
        if not isinstance(event, ObservedAction) or event.kind != "program" or event.streams is None:
            return
        found = self._tree.program(event.pid)
        if found is None:
            return
        if found.command.program == "mkfifo":
            self._fifo = event.label
        evidence = (
            self._by_socket(event, found.command)
            or self._by_pipe(event, found.command)
            or self._by_call(event, found.command)
            or self._by_talker(event)
        )
        if evidence:
            yield finding(SHELL, event, found.command.program, [evidence, found.command.text])

    def _by_socket(self, action: ObservedAction, command: Command) -> str | None:
        """A file that is given to a shell is its input; what comes from a socket is somebody's orders."""
        assert action.streams is not None
        if "inet" not in action.streams[:2]:
            return None
        outside = self._called is not None and self._called[0] == action.label
        if action.streams[0] == action.streams[1] == "inet" and action.program.startswith(OWN_FOLDERS):
            evidence = f"{command.text} of one's own has a connection as input and output"
            if outside:
                return evidence
            self._waiting = (action.label, evidence)
        if is_shell(action, command) and not takes_orders(command) and not outside:
            return None  # a server of one's own that answers by a script
        if is_shell(action, command) or (
            _AWK.match(command.program) and re.search(r"\|\s*getline|system\(", command.text)
        ):
            return f"input, output and errors: {', '.join(action.streams)}"
        if action.streams[0] == "inet" and is_interpreter(action, command) and takes_orders(command):
            return f"an interpreter reads from the network: {', '.join(action.streams)}"
        return None

    def _by_call(self, action: ObservedAction, command: Command) -> str | None:
        """A shell without a script, started by an interpreter or fed by a named pipe, in a call that goes outside."""
        assert action.streams is not None
        if not is_shell(action, command) or not takes_orders(command) or action.label is None:
            return None
        parent = action.parent_program.rsplit("/", 1)[-1]
        by_program = action.streams[0] in {"pipe", "unix", "terminal"} and INTERPRETERS.match(parent) is not None
        by_fifo = action.streams[0] in {"file", "other", "pipe"} and self._fifo == action.label
        if not by_program and not by_fifo:
            return None
        evidence = f"{command.text} takes orders from {parent or 'a named pipe'}"
        if self._called is not None and self._called[0] == action.label:
            return f"{evidence}, which called {self._called[1]}"
        self._waiting = (action.label, evidence)
        return None

    def _connected(self, record: EgressRecord) -> Iterator[Finding]:
        attempt = record.attempt
        if record.decision.allowed or attempt.protocol not in {"tcp", "udp"} or special_kind(attempt) == "loopback":
            return
        self._called = (record.label, attempt.target)
        if self._waiting is not None and self._waiting[0] == record.label and record.label is not None:
            yield finding(SHELL, record, "shell", [self._waiting[1], attempt.target])

    def _by_pipe(self, action: ObservedAction, command: Command) -> str | None:
        """A shell without a script behind a process that talks to the network."""
        assert action.streams is not None
        if action.streams[0] not in {"pipe", "terminal", "unix"} or not is_shell(action, command):
            return None
        empty = command.arguments[:1] == ("-c",) and not "".join(command.arguments[1:2]).strip()
        called = self._called is not None and self._called[0] == action.label
        if action.parent_sockets and called and (empty or takes_orders(command)):
            return f"a shell without a script whose parent holds {action.parent_sockets} connections"
        return None

    def _by_talker(self, action: ObservedAction) -> str | None:
        """A shell without a script that reads, through others or directly, what a program hears from outside."""
        for writer, reader in self._tree.pipes(action):
            here = any(is_here(word.partition(":")[0]) for word in writer.arguments)
            if reader.program in SHELLS and takes_orders(reader) and _is_talker(writer) and not here:
                return f"{writer.text} gives orders to {reader.text}"
        return None


def _is_talker(command: Command) -> bool:
    """``openssl`` does much else between pipes."""
    speaks = command.program != "openssl" or command.arguments[:1] in {("s_client",), ("s_server",)}
    return command.program in _TALKERS and speaks


def is_shell(action: ObservedAction, command: Command) -> bool:
    """By either name: a copy of a shell under another name is called by that name, a link has the shell's file."""
    return bool({command.program, action.program.rsplit("/", 1)[-1]} & SHELLS)


def is_interpreter(action: ObservedAction, command: Command) -> bool:
    return any(INTERPRETERS.match(name) for name in (command.program, action.program.rsplit("/", 1)[-1]))


def takes_orders(command: Command) -> bool:
    """Return whether it runs what it reads: no script and no ``-c``."""
    words, place = command.arguments, 0
    while place < len(words) and words[place].startswith("-") and words[place] != "-":
        if re.fullmatch(r"-[a-z]*[cem]|--eval|--execute", words[place]):
            return False
        place += 2 if words[place] in _VALUED else 1
    return place >= len(words) or words[place] == "-" or words[place].startswith(("/dev/", "/proc/"))
