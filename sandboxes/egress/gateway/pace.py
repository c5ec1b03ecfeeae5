"""How much of the event loop one sandbox may take: a little at a time, and a rest after that.

Whatever hostile code sends, and however fast, the loop serves every other sandbox between two slices.  What waits
meanwhile waits in the kernel's queue, and what finds that full is counted there.
"""

import asyncio
import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

SLICE = 4
"""What is taken in one go, when there is more: about a millisecond."""
REST = 4.0
"""How long it rests after a full slice, in lengths of the slice: so one sandbox gets a fifth of the loop."""
SHORTEST_REST_S = 0.002
"""What a slice begins (tasks) is paid for later, and is not in its own length."""
REFUSED_REST_S = 0.1
"""After ``OutOfDescriptors``: the next try would meet it again."""


class OutOfDescriptors(Exception):
    """This process, or the machine, can open no more files; what waits goes on waiting."""


class PacedReader:
    """Calls ``take`` while a descriptor is readable.  Belongs to one event loop."""

    def __init__(self, descriptor: int, take: Callable[[int], int]) -> None:
        """``take`` handles at most so many and returns how many there were."""
        self._descriptor = descriptor
        self._take = take
        self._resting: asyncio.TimerHandle | None = None
        self._warned = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._readable)

    def _readable(self) -> None:
        began_s = time.perf_counter()
        try:
            taken = self._take(SLICE)
        except OutOfDescriptors as error:
            self._rest(REFUSED_REST_S)
            self._warn(str(error))
            return
        if taken >= SLICE:
            self._rest(max(SHORTEST_REST_S, REST * (time.perf_counter() - began_s)))

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("connections of a sandbox wait: %s", what)

    def _rest(self, duration_s: float) -> None:
        self._loop.remove_reader(self._descriptor)
        self._resting = self._loop.call_later(duration_s, self._resume)

    def _resume(self) -> None:
        self._resting = None
        self._loop.add_reader(self._descriptor, self._readable)

    def close(self) -> None:
        """Before the descriptor is closed."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        self._loop.remove_reader(self._descriptor)
