"""Who is next: permits for users who wait, one user after the other, each user's own calls in order.

A semaphore would serve calls in order, and whoever asks a hundred times makes everybody else wait for all of them.
"""

import asyncio
from collections import OrderedDict, deque


class Turns:
    """``permits`` at once.  Belongs to one event loop."""

    def __init__(self, permits: int) -> None:
        self._free = permits
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Users in the order of their turns; none without a call that waits."""

    async def acquire(self, user: str) -> None:
        """Wait for a permit.  A call that is cancelled leaves its queue, or passes on what it has got meanwhile."""
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release()
            else:
                self._leave(user, turn)
            raise

    def release(self) -> None:
        """Give a permit back; the next user gets it."""
        self._free += 1
        while self._free and self._waiting:
            user, turns = self._waiting.popitem(last=False)
            turns = deque(turn for turn in turns if not turn.done())  # without who has given up in this very moment
            if turns:
                self._free -= 1
                turns.popleft().set_result(None)
            if turns:
                self._waiting[user] = turns  # at the end: all others first

    def _leave(self, user: str, turn: "asyncio.Future[None]") -> None:
        turns = self._waiting.get(user, deque())
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[user]
