"""A renderer's process: it reads and writes the texts of one served model, with little memory.

    python -m engine.serving.models.renderer_main DESCRIPTOR

It does one thing after the other, and ends when the other end of its socket is gone.
"""

import asyncio
import pickle
import resource
import socket
import sys
from collections.abc import Sequence
from typing import Any

from engine.channel import Channel, portable
from engine.child_process import end_with_parent
from engine.rollout.agents.asked import Asked
from engine.rollout.agents.capture import Call
from engine.rollout.agents.contexts import Context, Contexts
from engine.rollout.agents.proxy import answered, pieces_shown
from engine.rollout.renderers.chat import ChatRenderer
from engine.rollout.renderers.contract import Renderer, Settled
from engine.rollout.renderers.registry import renderer_for
from engine.serving.models.renderer_messages import RendererCall, RendererReply
from engine.spec.generation import Generated
from engine.spec.message import ToolSchema
from engine.spec.run import RunSpec

MOST_BYTES = 2 * 2**30
"""The most addresses: a large tokenizer takes a fourth of that, and the rest is for what a template makes."""


class _Rendering:
    """What may be asked, by name; ``begin`` comes first."""

    async def begin(self, spec: RunSpec) -> tuple[frozenset[int], bool]:
        """Return the ids that end a turn, and whether its turns can call tools."""
        self._renderer: Renderer = renderer_for(spec.model, spec.environment)
        calls = not isinstance(self._renderer, ChatRenderer) or self._renderer.call_format is not None
        return self._renderer.stop_ids, calls

    async def context(self, asked: Asked, context_tokens: int) -> Context:
        return (await Contexts(self._renderer).find(asked, context_tokens)).context

    async def settled(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Settled:
        return self._renderer.settled(token_ids, tools)

    async def answered(
        self, asked: Asked, context: Context, generated: Generated, id: str, shown: str
    ) -> tuple[Call, list[str]]:
        """The call, and the text of each token where its log-prob is shown."""
        call, _ = answered(asked, context, generated, self._renderer, id, shown)
        return call, pieces_shown(asked, call, self._renderer)


class _Served:
    """Answers one call after the other."""

    def __init__(self) -> None:
        self._rendering = _Rendering()
        self._calls: asyncio.Queue[RendererCall] = asyncio.Queue()
        self._channel = Channel(self._received, sys.exit)

    async def serve(self, end: socket.socket) -> None:
        """Never returns."""
        await self._channel.open(end)
        while True:
            call = await self._calls.get()
            try:
                value = await getattr(self._rendering, call.method)(*pickle.loads(call.arguments))
            except Exception as error:  # travels to the one who asked
                value = portable(error)
            self._channel.send(RendererReply(call.number, value))

    def _received(self, messages: list[Any]) -> None:
        for message in messages:
            self._calls.put_nowait(RendererCall(*message))


def main(descriptor: int, parent: int) -> None:
    end_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asyncio.run(_Served().serve(socket.socket(fileno=descriptor)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
