"""One reader per (process, group of viewers), however many people look.

    a change ── commit ──► notify ──┐
    every POLL_S ───────────────────┤
                                    ▼
                      hub: reads past what it has, once for all
                                    │ a change to wait for
                     ┌──────────────┼──────────────┐
                  viewer         viewer         viewer    each is a cursor and nothing else

What is read, and what viewers are sent, the hubs of ``webapp/live/runs.py`` and ``webapp/live/alerts.py`` say.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar
from weakref import WeakKeyDictionary

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from webapp.live.notifications import happens, listen

POLL_S = 2.0
"""A lost notification (the channel layer is down) delays by this much and loses nothing."""
INTERVAL_S = 0.1
"""A viewer gets at most ten frames a second."""
KEEPALIVE_S = 20.0
"""A viewer hears something at least this often, so it can tell a dead connection from a quiet one."""

log = structlog.get_logger(__name__)


class Hub(ABC):
    def __init__(self, group: str) -> None:
        self.group = group
        """The group of the channel layer: whoever changes what this hub reads notifies it."""
        self.viewers = 0
        self._notified = asyncio.Event()
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._listener = asyncio.create_task(listen(self.group, self._notified, retry_s=POLL_S))
        self._reader = asyncio.create_task(self._read_on())
        # Viewers wait for a change; that there will be none is one too.
        self._reader.add_done_callback(lambda _: self._changed.set())

    async def stop(self) -> None:
        tasks = (self._listener, self._reader)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @abstractmethod
    async def advance(self) -> bool:
        """Read on once, and ``announce`` what is new; return whether there is more at once."""

    def announce(self) -> None:
        """Wake all who wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def next_change(self) -> asyncio.Event:
        """To wait for, after a look at what is there.  Raises whatever ended the reader."""
        if self._reader.done():
            self._reader.result()
        return self._changed

    async def _read_on(self) -> None:
        while True:
            self._notified.clear()
            try:
                more = await self.advance()
            except (psycopg.OperationalError, PoolTimeout) as error:
                # The database restarts: viewers wait, and nothing is lost because nothing was skipped.
                log.warning("live.read_failed", group=self.group, error=str(error))
                more = False
            await asyncio.sleep(INTERVAL_S)
            if not more:
                await happens(self._notified, POLL_S)


AnyHub = TypeVar("AnyHub", bound=Hub)
_HUBS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Hub]] = WeakKeyDictionary()


@asynccontextmanager
async def joined(kind: type[AnyHub], group: str) -> AsyncIterator[AnyHub]:
    """The group's hub in this process; it lives as long as somebody looks."""
    hubs = _HUBS.setdefault(asyncio.get_running_loop(), {})
    if group not in hubs:
        hubs[group] = kind(group)
        hubs[group].start()
    hub = hubs[group]
    assert isinstance(hub, kind)
    hub.viewers += 1
    try:
        yield hub
    finally:
        hub.viewers -= 1
        if hub.viewers == 0:
            del hubs[group]
            await hub.stop()
