"""Warm sandboxes for many users in turn.

    acquire ──► idle sandbox? ──────────────► user ──► (background) reuse = "never": close, open another ──► idle
       │          none, below size: open one          │         reuse = "reset": reset ────────────────► idle
       └── none, at size: wait, users in turn         │ frozen: kept for inspection, open another
                                                      └ fails, or sandbox lost: close, open another

A permit stands for a place in the pool.  A user holds it, and then the end or reset of its sandbox: so
nobody ever meets a sandbox that is as its last user left it, and no more than ``size`` sandboxes exist beside the
frozen ones.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sandboxes.egress.gateway.ledger import OnRecord, OnStatement
from sandboxes.egress.gateway.upstream import UPSTREAM, Upstream
from sandboxes.interface import PoolClosed, Sandbox, SandboxFrozen, SandboxLost, SandboxUnavailable
from sandboxes.observation.observation import OnAction
from sandboxes.opened import open_sandbox, zygotes_for
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed
from sandboxes.turns import Turns

log = logging.getLogger(__name__)
STARTS_AT_ONCE = 4
AHEAD_AT_ONCE = 2
"""Sandboxes that are made for users to come, at once: those who have one shall have the processor."""
KEEP_FROZEN_S = 300.0
MOST_FROZEN = 4
"""Kept at once, beside the sandboxes of the pool; the oldest makes room."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    size: int
    idle: int
    busy: int
    """With a user."""
    cleaning: int
    """Being reset, replaced or closed."""
    waiting: int
    """Calls of ``acquire`` that have no sandbox yet."""
    started: int
    """Sandboxes ever made."""
    lost: int
    """Sandboxes that died or could not be reset."""
    frozen: int
    """Sandboxes that were frozen, those that are kept and those that are not any more."""
    served: int
    """Users ever served."""


class Pool:
    """At most ``size`` sandboxes of one spec, made when first needed, and ahead of time once they are.

    Belongs to one event loop.  ``spec.reuse`` says whether a sandbox has one user or many.

    ``on_record`` gets what any of the sandboxes tried to reach, what is found when a sandbox is reset included;
    records tell users apart by ``attempt.sandbox``, which is another one for each.
    ``on_statement`` gets the same one by one and at once, also while ``on_record`` takes nothing (``open_sandbox``).
    ``on_action`` gets what the processes of watched sandboxes do (``open_sandbox``), by the same names.
    A frozen sandbox is kept for ``keep_frozen_s`` seconds after its user has gone, and no user ever gets it.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        size: int,
        on_record: OnRecord | None = None,
        upstream: Upstream = UPSTREAM,
        keep_frozen_s: float = KEEP_FROZEN_S,
        on_action: OnAction | None = None,
        on_statement: OnStatement | None = None,
    ) -> None:
        if size < 1:
            raise ValueError("a pool needs at least one sandbox")
        if keep_frozen_s < 0:
            raise ValueError(
                f"keep_frozen_s = {keep_frozen_s:g}: not less than 0, which closes a frozen sandbox at once"
            )
        self.spec = spec
        self.size = size
        self._on_record = on_record
        self._on_action = on_action
        self._on_statement = on_statement
        self._upstream = upstream
        self._keep_frozen_s = keep_frozen_s
        self._permits = Turns(size)
        self._ahead = asyncio.Semaphore(AHEAD_AT_ONCE)
        self._zygotes = zygotes_for(spec)
        self._idle: deque[Sandbox] = deque()
        self._busy: set[Sandbox] = set()
        self._kept: dict[Sandbox, asyncio.TimerHandle] = {}
        """Frozen, the oldest first; each is closed when its time is over."""
        self._cleaning: set[asyncio.Task[None]] = set()
        self._closed = False
        self._waiting = self._started = self._lost = self._frozen = self._served = 0

    async def __aenter__(self) -> "Pool":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def warm(self, sandboxes: int | None = None) -> None:
        """Have ``sandboxes`` (default: all) idle sandboxes ready.  Raises ``SandboxUnavailable``."""
        missing = min(self.size if sandboxes is None else sandboxes, self.size) - len(self._idle) - len(self._busy)
        at_once = asyncio.Semaphore(STARTS_AT_ONCE)

        async def start() -> None:
            async with at_once:
                self._idle.append(await self._open())

        results = await asyncio.gather(*(start() for _ in range(missing)), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException):
                raise error

    @asynccontextmanager
    async def acquire(self, user: str = "") -> AsyncIterator[Sandbox]:
        """A fresh sandbox; it is given back however the user leaves.

        Users who wait get sandboxes in turn, however often each of them asks; the calls of one user in their order.
        Raises ``SandboxUnavailable`` if a new sandbox is needed and cannot be made, ``PoolClosed`` after ``close``.
        """
        async with self._held(user, None) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def acquire_of(self, spec: SandboxSpec, user: str = "") -> AsyncIterator[Sandbox]:
        """A fresh sandbox of another spec, which takes a place of the pool and is closed when the user leaves.

        Of the pool's own spec it is what ``acquire`` gives.  Users wait and raise as there.
        """
        async with self._held(user, None if spec == self.spec else spec) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def _held(self, user: str, other: SandboxSpec | None) -> AsyncIterator[Sandbox]:
        await self._permit(user)
        try:
            sandbox = await (self._take() if other is None else self._made_of(other))
        except BaseException:
            self._permits.release()
            raise
        self._busy.add(sandbox)
        self._served += 1
        try:
            yield sandbox
        finally:
            self._busy.discard(sandbox)
            self._in_background(self._clean(sandbox, reusable=other is None))

    def stats(self) -> PoolStats:
        return PoolStats(
            size=self.size,
            idle=len(self._idle),
            busy=len(self._busy),
            cleaning=len(self._cleaning),
            waiting=self._waiting,
            started=self._started,
            lost=self._lost,
            frozen=self._frozen,
            served=self._served,
        )

    def frozen(self) -> list[Sandbox]:
        """The frozen sandboxes that are kept, the oldest first."""
        return list(self._kept)

    async def close(self) -> None:
        """Close every sandbox; a user who still has one gets ``SandboxLost``, one who waits ``PoolClosed``."""
        self._closed = True
        await completed(self._close())

    async def _close(self) -> None:
        # Users and cleaners come to an end by themselves once their sandboxes are closed.
        idle = list(self._idle)
        self._idle.clear()  # now: whatever a cleaner adds from here on, it closes
        await _all_closed((*self._busy, *idle))
        while self._cleaning:
            await asyncio.wait(self._cleaning)
        for timer in self._kept.values():
            timer.cancel()
        await _all_closed(self._kept)
        self._kept.clear()
        if self._zygotes is not None:
            await self._zygotes.close()
        for _ in range(self._waiting):
            self._permits.release()

    async def _permit(self, user: str) -> None:
        self._waiting += 1
        try:
            await self._permits.acquire(user)
        finally:
            self._waiting -= 1
        if self._closed:
            self._permits.release()
            raise PoolClosed("the pool is closed")

    async def _take(self) -> Sandbox:
        while self._idle:
            sandbox = self._idle.popleft()
            if sandbox.frozen is not None:
                self._keep(sandbox)
            elif sandbox.alive:
                return sandbox
            else:
                self._lost += 1
                await completed(sandbox.close())
        return await self._open()

    async def _made_of(self, spec: SandboxSpec) -> Sandbox:
        """In the place of one that is idle, so that there are never more than ``size``."""
        if self._idle:
            await completed(self._idle.popleft().close())
        return await self._open(spec)

    async def _open(self, other: SandboxSpec | None = None) -> Sandbox:
        spec, zygotes = (self.spec, self._zygotes) if other is None else (other, None)
        sandbox = await open_sandbox(
            spec, self._on_record, self._upstream, self._on_action, zygotes, self._on_statement
        )
        self._started += 1
        if self._closed:
            await completed(sandbox.close())
            raise PoolClosed("the pool was closed while a sandbox was made")
        return sandbox

    async def _clean(self, sandbox: Sandbox, *, reusable: bool) -> None:
        """Make a used sandbox fit for the next user, or replace it; then free its place, whatever happens.

        One that is not ``reusable`` is of another spec: it is closed, or kept if it is frozen, and not replaced.
        """
        try:
            if not await self._fit_again(sandbox, reusable) and reusable and not self._closed:
                await self._replace()
        except Exception:
            log.exception("a sandbox could not be cleaned up, and is not used any more")
        finally:
            self._permits.release()
        if self._closed:
            while self._idle:
                await self._idle.popleft().close()

    async def _fit_again(self, sandbox: Sandbox, reusable: bool) -> bool:
        """Whether the next user may have it; otherwise it is gone, or kept."""
        if (self.spec.reuse == "never" or not reusable) and sandbox.frozen is None:
            if sandbox.alive:
                await sandbox.close()
            else:
                await self._discard(sandbox, SandboxLost("it ended while its user had it"))
            return False
        try:
            if sandbox.frozen is None:
                await sandbox.reset()
        except SandboxFrozen:
            pass  # meanwhile
        except Exception as loss:
            await self._discard(sandbox, loss)
            return False
        if sandbox.frozen is None:
            self._idle.append(sandbox)
            return True
        if self._closed:
            await sandbox.close()
        else:
            self._keep(sandbox)
        return False

    async def _discard(self, sandbox: Sandbox, why: Exception) -> None:
        if not self._closed:
            self._lost += 1
            expected = isinstance(why, SandboxLost)
            log.warning("a sandbox was lost and is replaced: %s", why, exc_info=None if expected else why)
        await sandbox.close()

    def _keep(self, sandbox: Sandbox) -> None:
        """For inspection, and not for long."""
        self._frozen += 1
        log.warning("sandbox %s was frozen and is replaced: %s", sandbox.name, sandbox.frozen)
        loop = asyncio.get_running_loop()
        self._kept[sandbox] = loop.call_later(self._keep_frozen_s, self._let_go, sandbox)
        while len(self._kept) > MOST_FROZEN:
            self._let_go(next(iter(self._kept)))

    def _let_go(self, sandbox: Sandbox) -> None:
        self._kept.pop(sandbox).cancel()
        self._in_background(sandbox.close())

    async def _replace(self) -> None:
        try:
            async with self._ahead:
                if not self._closed:
                    self._idle.append(await self._open())
        except PoolClosed:
            return  # then nobody needs it
        except SandboxUnavailable as error:
            log.error("a sandbox could not be replaced: %s", error)  # whoever needs it next gets the same error

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._cleaning.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._cleaning.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a sandbox could not be closed", exc_info=error)


async def _all_closed(sandboxes: Iterable[Sandbox]) -> None:
    """Every one, however the close of another ends; then raise what went wrong first."""
    ends = await asyncio.gather(*(sandbox.close() for sandbox in sandboxes), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
