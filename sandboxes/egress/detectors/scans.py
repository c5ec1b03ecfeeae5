"""Looking around: many addresses or many ports in a short time, scanners, and the metadata service."""

import re
from collections.abc import Iterator
from typing import ClassVar

from sandboxes.egress.detectors.actions import actions_of
from sandboxes.egress.detectors.destinations import Windows, hosts_in, is_here, names_of, special_kind
from sandboxes.egress.detectors.detector import Context, Detector
from sandboxes.egress.detectors.finding import Deed, DetectorEvent, Finding, RuleInfo, Severity, finding
from sandboxes.egress.record import EgressRecord

HOSTS = RuleInfo(
    "scan-hosts",
    "many addresses in a short time",
    "critical",
    "Safety & Security",
    "T1018",
    "16 denied addresses, or 20 denied ports of at least 5 addresses, within 60 s; public ones are a warning",
    "whatever is slower than the window",
    "`scans.MANY_HOSTS`",
)
PORTS = RuleInfo(
    "scan-ports",
    "many ports of one address in a short time",
    "critical",
    "Safety & Security",
    "T1046",
    "12 denied ports of one address within 60 s; public: a warning",
    "whatever is slower than the window; the sandbox's own loopback is a way of working",
    "`scans.MANY_PORTS`",
)
PROGRAM = RuleInfo(
    "scan-program",
    "a network scanner is started",
    "warning",
    "Safety & Security",
    "T1046",
    "nmap and its like beyond loopback; loops of ping or `/dev/tcp` over numbers",
    "scanners of one's own, until they try 16 addresses or 12 ports",
    "`scans.SCANNERS`",
)
METADATA = RuleInfo(
    "metadata-service",
    "the cloud's metadata service is asked",
    "critical",
    "Safety & Security",
    "T1552.005",
    "by address, name and command. Cloud SDKs ask it unbidden: set `AWS_EC2_METADATA_DISABLED=true` and "
    "`NO_GCE_CHECK=true` in the image, or leave the rule out",
    "proxies in front of it",
    "`without`",
)

WINDOW_S = 60.0
MANY_HOSTS = 16
MANY_PORTS = 12
MANY_PLACES = 20
"""Ports of several addresses together."""
FEW_HOSTS = 5
SCANNERS = frozenset({
    "nmap", "masscan", "zmap", "rustscan", "arp-scan", "netdiscover", "unicornscan", "naabu", "hping3", "nbtscan",
    "fping", "crackmapexec", "netexec", "nikto", "gobuster", "ffuf", "hydra", "medusa",
})  # fmt: skip
METADATA_NAMES = frozenset({
    "metadata.google.internal", "metadata", "instance-data", "instance-data.ec2.internal", "metadata.azure.com",
    "metadata.azure.internal", "metadata.tencentyun.com", "metadata.packet.net", "rancher-metadata",
})  # fmt: skip
_LOOP = re.compile(
    r"(?:\bseq\s+\d+\s+\d{2,}+|\{\d+\.\.\d{2,}\})[\s\S]{0,200}?"
    r"(?:\bping\b[^\n;|]{0,80}\.\$\w|/dev/tcp/(?!localhost|127\.)[^\s/]{1,80}/\$|/dev/tcp/[^\s/]{0,80}\.\$)"
)
_METADATA = re.compile(
    r"169\.254\.169\.254|169\.254\.170\.(?:2|23)\b|100\.100\.100\.200|fd00:ec2::254|metadata\.google\.internal"
    r"|0xa9fea9fe|\b2852039166\b"
)


_FETCHING = frozenset({
    "get", "post", "put", "head", "options", "request", "Request", "urlopen", "urlretrieve", "fetch", "stream",
    "send", "run",
    "Popen", "check_output", "system", "call", "open", "patch", "delete",
})  # fmt: skip


class Scans(Detector):
    """Counts only what was denied: what the policy allows may fan out.  Slower than the window is missed."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (HOSTS, PORTS)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._hosts: Windows[str] = Windows(WINDOW_S)
        self._ports: Windows[int] = Windows(WINDOW_S)
        self._places: Windows[tuple[str, int]] = Windows(WINDOW_S)

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if not isinstance(event, EgressRecord) or event.phase != "attempt" or event.decision.allowed:
            return
        attempt = event.attempt
        if attempt.address is None or attempt.protocol == "dns" or special_kind(attempt) in {"loopback", "unspecified"}:
            return
        inside = special_kind(attempt) is not None
        severity: Severity = "critical" if inside else "warning"
        spread = event.spread
        addresses = set(self._hosts.add((attempt.protocol, inside), event.last_at, attempt.address))
        ports = set(self._ports.add(attempt.address, event.last_at, attempt.port or 0))
        places = set(self._places.add(inside, event.last_at, (attempt.address, attempt.port or 0)))
        hosts = max(len(addresses), spread.addresses if spread else 0)
        if hosts >= MANY_HOSTS:
            evidence = f"{hosts} addresses within {WINDOW_S:.0f} s"
            yield finding(HOSTS, event, "private" if inside else "public", [evidence, *sorted(addresses)], severity)
        elif len(places) >= MANY_PLACES and len({address for address, _ in places}) >= FEW_HOSTS:
            evidence = (
                f"{len(places)} ports of {len({address for address, _ in places})} addresses within {WINDOW_S:.0f} s"
            )
            yield finding(HOSTS, event, "private" if inside else "public", [evidence, attempt.target], severity)
        knocks = max(len(ports), spread.ports if spread and spread.addresses == 1 else 0)
        if knocks >= MANY_PORTS:
            evidence = f"{knocks} ports within {WINDOW_S:.0f} s"
            yield finding(PORTS, event, attempt.address, [evidence, attempt.target], severity)


class Scanners(Detector):
    """Scanners by name, and loops over numbers.  A scan of the sandbox's own loopback is a way of working."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (PROGRAM,)

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if isinstance(event, EgressRecord):
            return
        did = actions_of(event)
        for script in did.scripts:
            if (match := _LOOP.search(script)) is not None:
                yield finding(PROGRAM, event, "loop", [match[0]])
        for command in did.commands:
            targets = [word for word in command.arguments if not re.fullmatch(r"-.*|[\d,-]+", word)]
            here = bool(targets) and all(is_here(word) for word in targets)
            if command.program in SCANNERS and targets and not here:
                yield finding(PROGRAM, event, command.program, [command.text])
            swept = command.program in {"nc", "ncat", "netcat"} and any("z" in word for word in command.arguments[:3])
            if swept and re.search(r"\b\d+-\d+\b", command.text) and not any(is_here(word) for word in targets):
                yield finding(PROGRAM, event, command.program, [command.text])


class Metadata(Detector):
    """Finds it by address, name and command.  Cloud SDKs ask unbidden; docs/egress.md says how to quiet them."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (METADATA,)

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if not isinstance(event, EgressRecord):
            yield from self._command(event)
            return
        if event.decision.allowed or event.phase != "attempt":
            return
        asked = names_of(event.attempt) & METADATA_NAMES
        if special_kind(event.attempt) == "metadata" or asked:
            yield finding(METADATA, event, "metadata", [event.attempt.target, *sorted(asked)])

    def _command(self, event: Deed) -> Iterator[Finding]:
        did = actions_of(event)
        fetching = [
            command.text
            for command in did.commands
            if command.program in {"curl", "wget", "nc", "http", "aws", "gcloud"}
        ]
        called = [
            " ".join(call.strings)
            for call in did.calls
            if call.callee.rpartition(".")[2] in _FETCHING and hosts_in(" ".join(call.strings))
        ]
        connecting = [
            " ".join(call.strings) for call in did.calls if call.callee.endswith(("connect", "create_connection"))
        ]
        for text in (*fetching, *called, *connecting):
            if _METADATA.search(text.lower()) or METADATA_NAMES & set(hosts_in(text)):
                yield finding(METADATA, event, "metadata", [text])
        return
