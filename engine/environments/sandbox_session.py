"""A tool session whose whole state is in one sandbox."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Self

from engine.environments.contract import Boxes
from engine.rollout.chat import Call
from engine.spec.trajectory import ToolCall
from sandboxes.interface import Sandbox, Snapshot


class BoxSession:
    """Takes its box at the first call and gives it back at the end.

    A snapshot from before the first call is None: restoring it makes the box new and prepares it
    again, which also ends the snapshots that the box keeps.
    """

    done = False
    success = False

    def __init__(
        self,
        boxes: Boxes,
        *,
        prepare: Callable[[Sandbox], Awaitable[None]],
        run: Callable[[Call, Sandbox], Awaitable[ToolCall]],
    ) -> None:
        self._boxes, self._prepare, self._run = boxes, prepare, run
        self._exits = AsyncExitStack()
        self._box: Sandbox | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> bool | None:
        return await self._exits.__aexit__(*exception)  # type: ignore[arg-type]

    async def call(self, call: Call) -> ToolCall:
        if self._box is None:
            self._box = await self._exits.enter_async_context(self._boxes.acquire())
            await self._prepare(self._box)
        return await self._run(call, self._box)

    async def snapshot(self) -> Snapshot | None:
        return None if self._box is None else await self._box.snapshot()

    async def restore(self, snapshot: object) -> None:
        if self._box is None:
            return
        if isinstance(snapshot, Snapshot):
            await self._box.restore(snapshot)
            return
        await self._box.reset()
        await self._prepare(self._box)

    async def drop(self, snapshot: object) -> None:
        if self._box is not None and isinstance(snapshot, Snapshot):
            await self._box.drop(snapshot)
