"""The states of one sandbox, and whoever waits for them to change.

queued ──► starting ──► open ──► frozen
   │          │          │ └───────┼──► lost
   └──────────┴──────────┴─────────┴──► closed      each with its reason
"""

import asyncio
import time

from sandboxes.backends.remote.wire import LIVING, SandboxState


class Life:
    """Belongs to one event loop."""

    def __init__(self, state: SandboxState = "queued") -> None:
        self.state: SandboxState = state
        self.reason: str | None = None
        self.refused: Exception | None = None
        """Why it never opened."""
        self.created_at = time.time()
        self.ended_at = 0.0
        self._changed = asyncio.Event()

    def move(self, state: SandboxState, reason: str | None = None) -> bool:
        """Into another state, unless it has ended; return whether it moved.  Who waits for a change is told."""
        if self.state not in LIVING:
            return False
        self.state, self.reason = state, reason
        if state not in LIVING:
            self.ended_at = time.monotonic()
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def settled(self, wait_s: float) -> None:
        """Wait until it is neither queued nor starting, or the time is over."""
        try:
            async with asyncio.timeout(wait_s):
                while self.state in ("queued", "starting"):
                    await self._changed.wait()
        except TimeoutError:
            return

    @property
    def ended_s(self) -> float:
        """Return for how long it has been over."""
        return time.monotonic() - self.ended_at
