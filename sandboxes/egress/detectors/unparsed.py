"""What is not looked at: commands that are too long, or nested too deeply, to be read whole."""

from collections.abc import Iterator
from typing import ClassVar

from sandboxes.egress.detectors.actions import actions_of
from sandboxes.egress.detectors.detector import Detector
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import DetectorEvent, Finding, RuleInfo, finding
from sandboxes.egress.detectors.shell import command_of, takes_code

UNPARSED = RuleInfo(
    "unread-command",
    "a command is too much to be read whole",
    "warning",
    "Controllability",
    "T1027",
    "commands and code that are not read whole: longer than 256 KiB, nested deeper than 4 shells or 100 "
    "expressions, or more work than a budget; of files that are only written it is info",
    "nothing: what is not read is said",
    "write what is long to a file; leave the rule out",
)


class Unparsed(Detector):
    """Such a command could hide anything, and text is a hint.  A file may be data: info."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (UNPARSED,)

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if not isinstance(event, ExecEvent):
            return
        why = [f"{name} is longer than is kept" for name in sorted(event.cut) if name != "stdin" or _runs_stdin(event)]
        why += actions_of(event).budget.unparsed
        if not why:
            return
        began = " ".join(event.argv) or event.code
        yield finding(UNPARSED, event, why[0], [*why, began], "warning" if event.writes is None else "info")


def _runs_stdin(event: ExecEvent) -> bool:
    command = command_of(list(event.argv))
    return command is not None and takes_code(command)
