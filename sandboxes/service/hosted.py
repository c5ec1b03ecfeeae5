"""One sandbox of the service: who has it, what becomes of it (``life``), and what is under way in it."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from sandboxes.backends.remote.wire import LIVING, CreateSandbox, SandboxView
from sandboxes.egress.record import EgressRecord
from sandboxes.interface import ExecResult, Sandbox, SandboxFrozen, SandboxLost
from sandboxes.service.life import Life
from sandboxes.service.refusals import Busy, Refusal
from sandboxes.service.relay import Relay
from sandboxes.service.tokens import Token
from sandboxes.teardown import completed
from sandboxes.tree import TreeRefused

T = TypeVar("T")
CANCELLED_KEPT = 64
"""Names of calls that were cancelled before they came."""


def new_id() -> str:
    """Return a name that no other sandbox has, at whichever host."""
    return f"sbx-{secrets.token_hex(8)}"


class CallCancelled(Refusal):
    """Its caller has cancelled it."""


class RaisedBySandbox(Exception):
    """What the sandbox has raised is for its user: the same exception raised by the service would be a fault of
    ours."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class HostedSandbox(Life):
    """Belongs to one event loop.  ``HostedSandboxes`` decides over its life; here is what one sandbox needs."""

    def __init__(self, token: Token, wanted: CreateSandbox) -> None:
        super().__init__()
        self.id = new_id() if wanted.on_behalf is None else wanted.on_behalf.id
        self.token = token
        self.owner = token.owner
        """Who may reach it here; of an admin's sandbox that is the admin."""
        self.user = wanted.user or token.name
        self.wanted = wanted
        self.spec = wanted.spec
        self.relay = Relay() if wanted.stream else None
        self.execs = 0
        self.attempts_denied = 0
        self._counted = ("", 0)
        self._sandbox: Sandbox | None = None
        self._used_at = time.monotonic()
        self._under_way = 0
        self._calls: dict[str, asyncio.Task[ExecResult]] = {}
        self._cancelled: dict[str, None] = {}

    # -- its life ----------------------------------------------------------------------------------

    def opened(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.move("open")

    @property
    def sandbox(self) -> Sandbox:
        """Raises ``SandboxLost`` when it has ended, and ``Refusal`` while it is not open yet."""
        if self.state == "lost" or self._sandbox is None and self.state == "closed":
            raise SandboxLost(self.reason)
        if self._sandbox is None:
            raise Refusal(f"the sandbox is {self.state}: wait until it is open (GET /v1/sandboxes/{self.id}?wait_s=30)")
        if self.state == "closed":
            if self._sandbox.frozen is not None:
                raise SandboxFrozen(self._sandbox.frozen)
            raise SandboxLost(self.reason)
        return self._sandbox

    async def replace(self, opened: Sandbox) -> None:
        """Take another sandbox in the place of the one it has, and leave nothing of that; unless it has ended, or is
        frozen, meanwhile: then leave nothing of the new one, and raise like ``sandbox``."""
        try:
            await self.count_denied()
            former = self.sandbox  # from here to the change nobody else has a turn
            if former.frozen is not None:
                raise SandboxFrozen(former.frozen)
        except BaseException:
            await completed(opened.close())
            raise
        self._sandbox = opened
        await completed(former.close())

    async def close(self) -> None:
        """End what is in it.  Records can still be read."""
        if self._sandbox is not None:
            try:
                await completed(self._sandbox.close())
            finally:
                if self.relay is not None:
                    self.relay.end()
                await self.count_denied()

    @property
    def is_made_anew(self) -> bool:
        """Whether its key makes another one from now on: there was no room for it, or it ended and is an admin's.

        An admin closes what is left of a try that failed, and asks for the sandbox again by the same key.
        """
        return isinstance(self.refused, Busy) or self.wanted.on_behalf is not None and self.state not in LIVING

    @property
    def looks_alive(self) -> bool:
        return self._sandbox is None or self._sandbox.alive

    @property
    def unused_s(self) -> float:
        return 0.0 if self._under_way else time.monotonic() - self._used_at

    def touch(self) -> None:
        self._used_at = time.monotonic()

    def view(self, position: int | None) -> SandboxView:
        return SandboxView(
            id=self.id, name=None if self._sandbox is None else self._sandbox.name,
            owner=self.owner if self.wanted.on_behalf is None else self.wanted.on_behalf.owner, user=self.user,
            state=self.state, position=position, reason=self.reason, spec=self.spec, idle_s=self.wanted.idle_s,
            created_at=self.created_at, unused_s=self.unused_s,
        )  # fmt: skip

    # -- what is under way -------------------------------------------------------------------------

    async def busy(self, work: Awaitable[T]) -> T:
        """Do something in it: as long as that lasts, it is in use.  What it says of its own end is kept."""
        self._under_way += 1
        try:
            return await work
        except SandboxLost as error:
            self.move("lost", str(error))
            raise
        except (OSError, ValueError, TreeRefused) as error:
            raise RaisedBySandbox(error) from error
        finally:
            self._under_way -= 1
            self.touch()

    async def call(self, name: str | None, work: Coroutine[Any, Any, ExecResult]) -> ExecResult:
        """Run code, so that ``cancel`` can end it by its name."""
        if name is not None and name in self._cancelled:
            work.close()
            raise CallCancelled(f"call = '{name}': it was cancelled before it began")
        if name is not None and name in self._calls:
            work.close()
            raise Refusal(f"call = '{name}': it is under way already; a call is never run twice")
        self.execs += 1
        task = asyncio.ensure_future(self.busy(work))
        if name is not None:
            self._calls[name] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise CallCancelled(f"call = '{name}': it was cancelled") from None
            task.cancel()  # the service is ending
            raise
        finally:
            if name is not None:
                self._calls.pop(name, None)

    async def cancel(self, name: str) -> None:
        """End a call; when this returns, nothing of it runs.  One that comes later does not begin."""
        self._cancelled[name] = None
        while len(self._cancelled) > CANCELLED_KEPT:
            del self._cancelled[next(iter(self._cancelled))]
        task = self._calls.get(name)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    # -- what it tried -----------------------------------------------------------------------------

    async def records(self, user: str | None, after: int, limit: int, wait_s: float) -> list[EgressRecord]:
        """Return the records of the present user, or of the former one of a sandbox that streams."""
        sandbox = self._sandbox
        if sandbox is None:
            return []
        if self.relay is not None:
            return await self.busy(self.relay.records(user or sandbox.name, after, limit, wait_s))
        found = await self.busy(sandbox.egress(after, limit=limit))
        for record in found:
            self._count(record)
        return found

    def on_record(self, record: EgressRecord) -> None:
        """Take a record of a sandbox that streams."""
        assert self.relay is not None
        self._count(record)
        self.relay.add(record)

    async def count_denied(self) -> None:
        """Count what nobody has asked for: soon it cannot be read any more."""
        user, counted = self._counted
        if self._sandbox is None or self.relay is not None:
            return
        counted = counted if user == self._sandbox.name else 0
        while records := await self._sandbox.egress(counted):
            for record in records:
                self._count(record)
            counted = records[-1].seq

    def acknowledge(self, user: str | None, through: int) -> None:
        if self._sandbox is None or through == 0:
            return
        try:
            if self.relay is None:
                self._sandbox.acknowledge_egress(through)
            else:
                self.relay.acknowledge(user or self._sandbox.name, through)
        except ValueError as error:
            raise RaisedBySandbox(error) from error

    def _count(self, record: EgressRecord) -> None:
        user, counted = self._counted
        if record.attempt.sandbox == user and record.seq <= counted:
            return
        self._counted = (record.attempt.sandbox, record.seq)
        if record.phase == "attempt" and not record.decision.allowed:
            self.attempts_denied += record.count
