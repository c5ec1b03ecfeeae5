"""What is not looked at: commands that are too long, or nested too deeply, to be read whole; and started programs."""

from collections.abc import Iterator
from typing import ClassVar

from sandboxes.egress.detectors.actions import actions_of
from sandboxes.egress.detectors.detector import Detector
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import Deed, DetectorEvent, Finding, RuleInfo, Severity, finding
from sandboxes.egress.detectors.shell import command_of, takes_code
from sandboxes.egress.record import EgressRecord

UNPARSED = RuleInfo(
    "unread-command",
    "a command is too much to be read whole",
    "warning",
    "Controllability",
    "T1027",
    "commands and code that are not read whole: longer than 256 KiB, nested deeper than 4 shells or 100 "
    "expressions, or more work than a budget; of files that are only written it is info; of a started program more "
    "than 256 arguments or 16 KiB of them, or of the variables that change what programs do, is info until its tool "
    "call tries somebody outside",
    "nothing: what is not read is said",
    "write what is long to a file; leave the rule out",
)


class Unparsed(Detector):
    """Such a command could hide anything, and text is a hint.  A file may be data: info.

    A program with long arguments is mostly one with many files: what is not read of it is a hint as well.
    """

    rules: ClassVar[tuple[RuleInfo, ...]] = (UNPARSED,)

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if isinstance(event, EgressRecord):
            return
        why = [f"{name} is longer than is kept" for name in sorted(event.cut) if name != "stdin" or _runs_stdin(event)]
        why += actions_of(event).budget.unparsed
        if why:
            yield finding(UNPARSED, event, why[0], [*why, " ".join(event.argv) or _code(event)], _severity(event))


def _code(event: Deed) -> str:
    return event.code if isinstance(event, ExecEvent) else ""


def _severity(event: Deed) -> Severity:
    """Outside of a tool call nothing could confirm what a deed's arguments hide."""
    if isinstance(event, ExecEvent):
        return "warning" if event.writes is None else "info"
    return "warning" if event.label is not None else "info"


def _runs_stdin(event: Deed) -> bool:
    command = command_of(list(event.argv))
    return command is not None and takes_code(command)
