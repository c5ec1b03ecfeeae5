"""Warm boxes for many users in turn.

    acquire ──► idle box? ──────────────► user ──► (back-ground) reset ──► idle
       │          none, below size: open one            │ fails, or box lost
       └── none, at size: wait, first come first served └──► close, open another

A permit stands for a place in the pool.  A user holds it, and after him the reset of his box: so
nobody ever meets a box that was not reset, and no more than ``size`` boxes exist.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sandboxes.egress.gateway.ledger import OnRecord
from sandboxes.egress.gateway.outside import WORLD, World
from sandboxes.interface import PoolClosed, Sandbox, SandboxLost, SandboxUnavailable
from sandboxes.opened import open_box
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed

log = logging.getLogger(__name__)
STARTS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class PoolStats:
    size: int
    idle: int
    busy: int
    """With a user."""
    cleaning: int
    """Being reset or replaced."""
    waiting: int
    """Users in the queue."""
    started: int
    """Boxes ever made."""
    lost: int
    """Boxes that died or could not be reset."""
    served: int
    """Users ever served."""


class Pool:
    """At most ``size`` boxes of one spec, made when first needed.  Belongs to one event loop.

    ``on_record`` gets what any of the boxes tried to reach, what is found when a box is reset included;
    records tell users apart by ``attempt.box``, which is another one for each.
    """

    def __init__(self, spec: SandboxSpec, size: int, on_record: OnRecord | None = None, world: World = WORLD) -> None:
        if size < 1:
            raise ValueError("a pool needs at least one box")
        self.spec = spec
        self.size = size
        self._on_record = on_record
        self._world = world
        self._permits = asyncio.Semaphore(size)  # first come, first served
        self._idle: deque[Sandbox] = deque()
        self._busy: set[Sandbox] = set()
        self._cleaning: set[asyncio.Task[None]] = set()
        self._closed = False
        self._waiting = self._started = self._lost = self._served = 0

    async def __aenter__(self) -> "Pool":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def warm(self, boxes: int | None = None) -> None:
        """Have ``boxes`` (default: all) idle boxes ready.  Raises ``SandboxUnavailable``."""
        missing = min(self.size if boxes is None else boxes, self.size) - len(self._idle) - len(self._busy)
        at_once = asyncio.Semaphore(STARTS_AT_ONCE)

        async def start() -> None:
            async with at_once:
                self._idle.append(await self._open())

        results = await asyncio.gather(*(start() for _ in range(missing)), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                raise error

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Sandbox]:
        """A fresh box; it is given back however the user leaves.

        Raises ``SandboxUnavailable`` if a new box is needed and cannot be made, ``PoolClosed`` after ``close``.
        """
        await self._permit()
        try:
            box = await self._take()
        except BaseException:
            self._permits.release()
            raise
        self._busy.add(box)
        self._served += 1
        try:
            yield box
        finally:
            self._busy.discard(box)
            self._in_background(self._clean(box))

    def stats(self) -> PoolStats:
        return PoolStats(
            size=self.size,
            idle=len(self._idle),
            busy=len(self._busy),
            cleaning=len(self._cleaning),
            waiting=self._waiting,
            started=self._started,
            lost=self._lost,
            served=self._served,
        )

    async def close(self) -> None:
        """Close every box; a user who still has one gets ``SandboxLost``, one who waits ``PoolClosed``."""
        self._closed = True
        await completed(self._close())

    async def _close(self) -> None:
        # Users and cleaners come to an end by themselves once their boxes are closed.
        await asyncio.gather(*(box.close() for box in (*self._busy, *self._idle)))
        self._idle.clear()
        while self._cleaning:
            await asyncio.wait(self._cleaning)
        for _ in range(self._waiting):
            self._permits.release()

    async def _permit(self) -> None:
        self._waiting += 1
        try:
            await self._permits.acquire()
        finally:
            self._waiting -= 1
        if self._closed:
            self._permits.release()
            raise PoolClosed("the pool is closed")

    async def _take(self) -> Sandbox:
        while self._idle:
            box = self._idle.popleft()
            if box.alive:
                return box
            self._lost += 1
            await completed(box.close())
        return await self._open()

    async def _open(self) -> Sandbox:
        box = await open_box(self.spec, self._on_record, self._world)
        self._started += 1
        if self._closed:
            await completed(box.close())
            raise PoolClosed("the pool was closed while a box was made")
        return box

    async def _clean(self, box: Sandbox) -> None:
        """Make a used box fit for the next user, or replace it; then free its place."""
        try:
            await box.reset()
        except SandboxLost as loss:
            await box.close()
            if not self._closed:
                self._lost += 1
                log.warning("a sandbox was lost and is replaced: %s", loss)
                await self._replace()
        else:
            self._idle.append(box)
        finally:
            self._permits.release()
        if self._closed:
            while self._idle:
                await self._idle.popleft().close()

    async def _replace(self) -> None:
        try:
            self._idle.append(await self._open())
        except PoolClosed:
            return  # then nobody needs it
        except SandboxUnavailable as error:
            log.error("a sandbox could not be replaced: %s", error)  # whoever needs it next will be told as well

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)
