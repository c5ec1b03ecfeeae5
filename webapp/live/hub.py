"""One reader per (process, run), however many people look.

    ingest ── commit ──► poke ──┐
    every POLL_S ───────────────┤
                                ▼
                  hub: reads past its cursor once, encodes once
                                │ ring of recent frames, a header, a change to wait for
              ┌─────────────────┼─────────────────┐
           viewer            viewer            viewer         each is a cursor and nothing else

There are no queues.  A viewer takes the next frame from the ring when its socket has taken the
last one; one that is too slow, or that comes with an old cursor, finds its place no longer in the
ring and reads the database itself until it has caught up.  So a viewer costs the same whether it
is fast or stuck, and it can miss nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
import structlog
from psycopg_pool import PoolTimeout

from webapp.live.log import Frame, Header, encode, read_frame, read_header
from webapp.live.pokes import happens, listen
from webapp.runs.poke import group_of

POLL_S = 2.0
"""A lost poke (the channel layer is down) delays by this much and loses nothing."""
INTERVAL_S = 0.1
"""At most ten frames a second."""
KEEPALIVE_S = 20.0
"""A viewer hears something at least this often, so it can tell a dead connection from a quiet run."""
RING_FRAMES = 64
RING_BYTES = 4 * 2**20

log = structlog.get_logger(__name__)


class Hub:
    def __init__(self, run_id: UUID) -> None:
        self.run_id = run_id
        self.header: Header | None = None
        """None until the first read."""
        self.version = 0
        """Counts changes of the header."""
        self.cursor = 0
        self.viewers = 0
        self._ring: deque[tuple[Frame, int]] = deque()
        """Recent frames, each with the version of the header in it."""
        self._poked = asyncio.Event()
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._listener = asyncio.create_task(listen(group_of(self.run_id), self._poked, retry_s=POLL_S))
        self._follower = asyncio.create_task(self._follow())
        # Viewers wait for a change; that there will be none is one too.
        self._follower.add_done_callback(lambda _: self._changed.set())

    async def stop(self) -> None:
        tasks = (self._listener, self._follower)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def frames(self, after: int) -> AsyncIterator[str]:
        """Everything that a viewer with this cursor has to get, as it comes; ends when the run has.

        Raises RunVanished, or whatever ended the reader.
        """
        cursor, seen_version = after, 0
        while True:
            if self._follower.done():
                self._follower.result()
            changed = self._changed
            header, version = self.header, self.version
            while header and cursor < self.cursor:
                frame, seen_version = await self._frame_after(cursor, header)
                cursor = frame.last_seq
                yield frame.text
            if header and seen_version < version:
                seen_version = version
                yield encode([], cursor, header)
            if header and header.has_ended and cursor >= header.last_seq:
                return
            if self.header is header and not await happens(changed, KEEPALIVE_S) and header:
                yield encode([], cursor, header)

    async def _frame_after(self, cursor: int, header: Header) -> tuple[Frame, int]:
        """The frame that begins right after ``cursor``; one from the database reaches no further than the ring."""
        for frame, version in self._ring:
            if frame.first_seq == cursor + 1:
                return frame, version
        version = self.version
        return await read_frame(self.run_id, cursor, self.cursor, self.header or header), version

    async def _follow(self) -> None:
        while True:
            try:
                more = await self._advance()
            except (psycopg.OperationalError, PoolTimeout) as error:
                # The database restarts: viewers wait, and nothing is lost because nothing was skipped.
                log.warning("live.read_failed", run=str(self.run_id), error=str(error))
                more = False
            await asyncio.sleep(INTERVAL_S)
            if not more:
                await happens(self._poked, POLL_S)
            self._poked.clear()

    async def _advance(self) -> bool:
        """Read on once; return whether there is more at once."""
        header = await read_header(self.run_id)
        if self.header is None:
            self.cursor = header.last_seq  # older events are read by the viewers that want them
        has_news = header.last_seq > self.cursor
        frame = await read_frame(self.run_id, self.cursor, header.last_seq, header) if has_news else None
        is_new_header = (
            self.header is None or header.text != self.header.text or header.last_seq != self.header.last_seq
        )
        self.version += is_new_header
        self.header = header
        if frame:
            self._remember(frame)
        if frame or is_new_header:
            self._changed.set()
            self._changed = asyncio.Event()
        return self.cursor < header.last_seq

    def _remember(self, frame: Frame) -> None:
        self._ring.append((frame, self.version))
        self.cursor = frame.last_seq
        while len(self._ring) > RING_FRAMES or sum(len(one.text) for one, _ in self._ring) > RING_BYTES:
            self._ring.popleft()


_HUBS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[UUID, Hub]] = WeakKeyDictionary()


@asynccontextmanager
async def hub_for(run_id: UUID) -> AsyncIterator[Hub]:
    """The run's hub in this process; it lives as long as somebody looks."""
    hubs = _HUBS.setdefault(asyncio.get_running_loop(), {})
    if run_id not in hubs:
        hubs[run_id] = Hub(run_id)
        hubs[run_id].start()
    hub = hubs[run_id]
    hub.viewers += 1
    try:
        yield hub
    finally:
        hub.viewers -= 1
        if hub.viewers == 0:
            del hubs[run_id]
            await hub.stop()
