"""The hub of a run: the log beyond a cursor, and the run's header.

There are no queues.  A viewer takes the next frame from the hub's ring when its socket has taken the
last one; one that is too slow, or that comes with an old cursor, finds its place no longer in the
ring and reads the database itself until it has caught up.  So a viewer costs the same whether it
is fast or stuck, and it can miss nothing.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from webapp.live import hub
from webapp.live.log import Frame, Header, encode, read_frame, read_header
from webapp.live.notifications import happens
from webapp.runs.notify import group_of

RING_FRAMES = 64
RING_BYTES = 4 * 2**20


class RunHub(hub.Hub):
    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.run_id = UUID(group.removeprefix(group_of("")))
        self.header: Header | None = None
        """It is None until the first read."""
        self.version = 0
        """Counts changes of the header."""
        self.cursor = 0
        self._ring: deque[tuple[Frame, int]] = deque()
        """Recent frames, each with the version of the header in it."""

    async def frames(self, after: int) -> AsyncIterator[str]:
        """Everything that a viewer with this cursor has to get, as it comes; ends when the run has.

        Raises RunVanished, or whatever ended the reader.
        """
        cursor, seen_version = after, 0
        while True:
            changed = self.next_change()
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
            if self.header is header and not await happens(changed, hub.KEEPALIVE_S) and header:
                yield encode([], cursor, header)

    async def _frame_after(self, cursor: int, header: Header) -> tuple[Frame, int]:
        """The frame that begins right after ``cursor``; one from the database reaches no further than the ring."""
        for frame, version in self._ring:
            if frame.first_seq == cursor + 1:
                return frame, version
        version = self.version
        return await read_frame(self.run_id, cursor, self.cursor, self.header or header), version

    async def advance(self) -> bool:
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
            self.announce()
        return self.cursor < header.last_seq

    def _remember(self, frame: Frame) -> None:
        self._ring.append((frame, self.version))
        self.cursor = frame.last_seq
        while len(self._ring) > RING_FRAMES or sum(len(frame.text) for frame, _ in self._ring) > RING_BYTES:
            self._ring.popleft()


@asynccontextmanager
async def run_hub(run_id: UUID) -> AsyncIterator[RunHub]:
    async with hub.joined(RunHub, group_of(run_id)) as joined:
        yield joined
