"""How much of one event is read.

Texts are hostile: they may be so long, or nested so deeply, that to look at all of them takes minutes.  Whoever
reads takes what it is about to look at out of one budget, so that the work is bounded whatever the text; what is
left is kept in ``unparsed``, and never passed over in silence.
"""

from collections.abc import Iterator
from contextlib import contextmanager

BUDGET = 600_000
"""About a microsecond each: a character, a node of Python's syntax tree."""
COMMAND = 50
CALL = 10
"""What a command and a call cost, for all detectors look at them."""
FIELD = 20
"""What a field of an f-string costs, for which Python has a parser started."""
TOO_MUCH = "more than is read of one command"
TOO_DEEP = "nested too deeply"


class ParseBudget:
    """What may still be looked at of one event."""

    def __init__(self) -> None:
        self._left = BUDGET
        self.unparsed: dict[str, None] = {}
        """Why something was not looked at."""

    def spend(self, amount: int) -> bool:
        """Take ``amount`` out of the budget; return False, and note why, if less is left."""
        if amount > self._left:
            self.unparsed[TOO_MUCH] = None
            return False
        self._left -= amount
        return True

    @contextmanager
    def guessing(self) -> Iterator[None]:
        """What is read meanwhile need not be code: it is no matter if some of it is left."""
        known = dict(self.unparsed)
        try:
            yield
        finally:
            self.unparsed = known
