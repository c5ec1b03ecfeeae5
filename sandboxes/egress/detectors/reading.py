"""How much of one event is read.

Texts are hostile: they may be so long, or nested so deeply, that to look at all of them takes minutes.  Whoever
reads takes what it is about to look at out of one budget, so that the work is bounded whatever the text; what is
left unread is told (``unread``), and never passed over in silence.
"""

from collections.abc import Iterator
from contextlib import contextmanager

BUDGET = 600_000
"""About a microsecond each: a character, a node of Python's syntax tree."""
COMMAND = 50
CALL = 10
"""What a command and a call cost, for all detectors look at them."""
FIELD = 20
"""Of an f-string, for which Python has a parser started."""
TOO_MUCH = "more than is read of one command"
TOO_DEEP = "nested too deeply"


class Reading:
    """Of one event."""

    def __init__(self) -> None:
        self._left = BUDGET
        self.unread: dict[str, None] = {}
        """Why something was not looked at."""

    def may(self, amount: int) -> bool:
        """Whether there is enough left for this."""
        if amount > self._left:
            self.unread[TOO_MUCH] = None
            return False
        self._left -= amount
        return True

    @contextmanager
    def guessing(self) -> Iterator[None]:
        """What is read meanwhile need not be code: it is no matter if some of it is left."""
        known = dict(self.unread)
        try:
            yield
        finally:
            self.unread = known
