"""A session of one tool whose whole state is in one sandbox, and which ends with an answer."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Self

from engine.environments.contract import Observation, Rewards, Sandboxes
from engine.spec.message import AssistantMessage, Message, ToolRequest
from engine.spec.trajectory import ToolCall
from sandboxes.interface import Sandbox, Snapshot


class SandboxSession:
    """Takes its sandbox at the first call and gives it back at the end.

    A snapshot from before the first call is None: restoring it makes the sandbox new and prepares it
    again, which also ends the snapshots that the sandbox keeps.
    """

    def __init__(
        self,
        sandboxes: Sandboxes,
        *,
        opening: Message,
        prepare: Callable[[Sandbox], Awaitable[None]],
        run: Callable[[ToolRequest, Sandbox], Awaitable[ToolCall]],
        is_right: Callable[[str], bool],
    ) -> None:
        self._sandboxes, self._opening = sandboxes, opening
        self._prepare, self._run, self._is_right = prepare, run, is_right
        self._exits = AsyncExitStack()
        self._sandbox: Sandbox | None = None
        self._answer: str | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> bool | None:
        return await self._exits.__aexit__(*exception)  # type: ignore[arg-type]

    async def reset(self) -> list[Message]:
        return [self._opening]

    async def act(self, message: AssistantMessage) -> Observation:
        if message.answers:
            self._answer = message.content
            return Observation(done=True)
        sandbox = await self.prepared()
        return Observation.of([await self._run(request, sandbox) for request in message.requests])

    async def prepared(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = await self._exits.enter_async_context(self._sandboxes.acquire())
            await self._prepare(self._sandbox)
        return self._sandbox

    async def score(self) -> Rewards:
        return Rewards(success=self._answer is not None and self._is_right(self._answer))

    async def snapshot(self) -> Snapshot | None:
        return None if self._sandbox is None else await self._sandbox.snapshot()

    async def restore(self, snapshot: object) -> None:
        if self._sandbox is None:
            return
        if isinstance(snapshot, Snapshot):
            await self._sandbox.restore(snapshot)
            return
        await self._sandbox.reset()
        await self._prepare(self._sandbox)

    async def drop(self, snapshot: object) -> None:
        if self._sandbox is not None and isinstance(snapshot, Snapshot):
            await self._sandbox.drop(snapshot)
