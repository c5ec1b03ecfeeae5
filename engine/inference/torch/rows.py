"""How few rows a pass may have for the sessions that are in a turn, so that leaving out the others changes no bit.

A row of a pass is computed from that row alone.  Fewer rows are sound arithmetic, and still not always equal bits,
because a kernel may sum in another order when its operands have another shape.  As with columns (widths.py) it is
tried on the machine, with the shapes and in the thread of the real passes, before the first of them.
"""

from collections.abc import Callable, Sequence, Set

MOST_SIZES = 8
SMALLEST_STEP = 4


class Rows:
    """The sizes of one decoder's passes, up to half of its slots: the rows of a larger one are copied together, which
    costs what it saves.  Belongs to the thread that computes them.
    """

    def __init__(self, slots: int, equal_in: Callable[[Sequence[int]], Set[int]], *, proves: bool) -> None:
        """``equal_in`` says in which of these sizes rows come out as they do among all; ``proves`` is whether it is
        asked."""
        step = max(SMALLEST_STEP, -(-slots // (2 * MOST_SIZES)))
        self._slots, self._equal_in = slots, equal_in
        self._tried = range(step, slots // 2 + 1, step) if proves else range(0)
        self._proven: list[int] | None = None

    def of(self, live: int) -> int:
        """The fewest rows for so many sessions; all slots where no fewer are proven."""
        if self._proven is None:
            self._proven = sorted(self._equal_in(self._tried)) if self._tried else []
        return next((size for size in self._proven if size >= live), self._slots)
