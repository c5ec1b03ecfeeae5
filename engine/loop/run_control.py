"""What the outside wants of the loop: to go on, to pause, to cancel; or to end, because its results no longer count."""

import asyncio
from typing import Self

from engine.spec.event import Desired


class RunControl:
    """Any thread or signal handler sets it; the loop reads and awaits it."""

    def __init__(self) -> None:
        self.desired: Desired = "run"
        self.ended_because: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()

    def attached(self) -> Self:
        """Belongs to the running event loop from now on."""
        self._loop = asyncio.get_running_loop()
        return self

    def want(self, desired: Desired) -> None:
        """A cancelled run stays cancelled."""
        if self.desired != "cancel":
            self.desired = desired
            self._notify()

    def end(self, reason: str) -> None:
        self.ended_because = reason
        self._notify()

    async def change(self, timeout_s: float) -> None:
        """Return when something was set, or after ``timeout_s``."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return
        self._changed.clear()

    def _notify(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)
