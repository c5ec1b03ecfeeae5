"""A file is read and, in the same tool call, somebody is called who takes it."""

import re
from collections.abc import Iterator

from sandboxes.egress.detectors.actions import absolute, actions_of
from sandboxes.egress.detectors.destinations import special_kind
from sandboxes.egress.detectors.detector import Context, Detector
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.exfiltration import COMMAND
from sandboxes.egress.detectors.finding import DetectorEvent, Finding, finding
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.reverse_shells import INTERPRETERS
from sandboxes.egress.detectors.shell import SHELLS
from sandboxes.egress.record import EgressRecord


class Sent(Detector):
    """What went there is not known, for it was denied.  Misses what is sent by HTTP or TLS without saying so.

    Files that a program reads itself are told by the observer, those of an interpreter by its code: that is a hint,
    and the call outside is the deed.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._read: tuple[str | None, str] | None = None
        self._odd: tuple[str | None, str] | None = None
        """The tool call that called a stranger on a port that no usual protocol of asking has, and whom."""
        self._poured: tuple[str | None, str] | None = None
        """The tool call in which a program had a connection as its output, and its command."""
        self._outside: tuple[str | None, str] | None = None

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if isinstance(event, EgressRecord):
            yield from self._called(event)
            return
        if event.label is None:
            return
        if isinstance(event, ObservedAction) and _pours(event):
            self._poured = (event.label, " ".join(event.argv))
        for path in _reads(event):
            self._read = (event.label, path)
        yield from self._sends_a_file(event)

    def _called(self, record: EgressRecord) -> Iterator[Finding]:
        if record.phase != "attempt" or record.decision.allowed or special_kind(record.attempt) is not None:
            return
        if record.attempt.address is None or record.label is None:
            return
        self._outside = (record.label, record.attempt.target)
        if is_odd(record):
            self._odd = self._outside
        yield from self._sends_a_file(record)

    def _sends_a_file(self, event: DetectorEvent) -> Iterator[Finding]:
        for what, destination in ((self._read, self._odd), (self._poured, self._outside)):
            if what is not None and destination is not None and what[0] == destination[0] == event.label:
                yield finding(COMMAND, event, what[1][:100], [f"reads {what[1]}", destination[1]], "warning")


def _reads(event: ExecEvent | ObservedAction) -> list[str]:
    if isinstance(event, ExecEvent):
        named = [absolute(path, "/work") for path in actions_of(event).reads] if event.writes is None else []
        return [path for path in named if _DATA.search(path)]
    holds = event.kind == "file" and event.operation == "read" and event.found and _DATA.search(event.path)
    return [event.path] if holds else []


def _pours(action: ObservedAction) -> bool:
    """A program that only reads files, with a connection as its output and none as its input."""
    if action.kind != "program" or action.streams is None or action.streams[:2] not in _POURING:
        return False
    name = action.program.rsplit("/", 1)[-1]
    return name not in SHELLS and not INTERPRETERS.match(name)


_POURING = {(given, "inet") for given in ("null", "file", "pipe", "closed")}
_DATA = re.compile(
    r"^/(?:work|root|home/[^/]+|srv|data|tmp)/(?!(?:.*/)?(?:\.git|\.venv|venv|node_modules|site-packages|__pycache__|\.cache|\.config)/)"
    r".*\.(?:txt|csv|json|jsonl|sql|db|sqlite|pem|key|env|log|md|ya?ml|xml|tsv|parquet|zip|gz|tgz|pdf|docx|xlsx|bin|dat|npy|pt|safetensors)$"
)
"""What somebody might want to have; code and configuration are read all the time."""
_USUAL = frozenset({
    22, 25, 53, 80, 110, 123, 143, 389, 443, 465, 514, 587, 636, 853, 993, 995, 1433, 1521, 1883, 2049, 2181,
    2375, 3000, 3128, 3306, 4317, 4318, 5000, 5432, 5601, 5672, 5900, 6379, 6443, 8000, 8080, 8081, 8086,
    8125, 8443, 8888, 9000, 9042, 9090, 9092, 9200, 9418, 10051, 11211, 15672, 26257, 27017,
})  # fmt: skip


_TAKING = frozenset({21, 25, 69, 465, 587, 989, 990, 2525})
"""Ports of mail and file transfer: whoever is called there takes what is brought."""


def is_odd(record: EgressRecord) -> bool:
    attempt = record.attempt
    outside = attempt.address is not None and special_kind(attempt) is None and attempt.protocol in {"tcp", "udp"}
    speaks = re.match(rb"[A-Z]{3,10} \S+ HTTP/|\x16\x03", record.opening_up) is not None
    takes = attempt.port in _TAKING or (attempt.port == 514 and attempt.protocol == "udp")
    return outside and not record.decision.allowed and not speaks and (attempt.port not in _USUAL or takes)
