"""What the last tool calls say: deeds are observed late, some only when the next call has begun."""

from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import DetectorEvent

MOST_TEXT = 2**17
"""The characters of one call that are remembered; a call that says more is judged as if it had said nothing."""
MOST_CALLS = 8


class CallTexts:
    """The texts of a sandbox's last calls.  One that has no label is remembered until the next."""

    def __init__(self) -> None:
        self._texts: dict[str | None, str] = {}

    def remember(self, event: ExecEvent) -> None:
        """A call says what it was given and what programs that it starts are given: all of it, for as long as it is
        the same call."""
        given = "\n".join((*event.argv, event.stdin, event.code))
        before = self._texts.pop(event.label, "")
        self._texts.pop(None, None)
        kept = f"{before}\n" if before and event.label is not None else ""
        self._texts[event.label] = f"{kept}{given}"[:MOST_TEXT]
        if len(self._texts) > MOST_CALLS:
            del self._texts[next(iter(self._texts))]

    def of(self, event: DetectorEvent) -> str | None:
        """What the deed's call says; None where that is not known, or not all of it."""
        text = self._texts.get(event.label)
        return None if text is None or len(text) == MOST_TEXT else text
