"""A served model's tokenizer and chat template, at work in a process that may die of them.

They come from strangers, and callers choose the texts: a filter of the template, or a pattern of the tokenizer, may
work for hours on one of them, or ask for all memory, and no bound of theirs sees it (docs/decisions/0022).  One server
answers all teams, so none of this runs in it: what takes too long is ended with its process, and the call is refused.
"""

import asyncio
import os
import pickle
import socket
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from engine.channel import Channel
from engine.child_process import started_at
from engine.rollout.agents.asked import Asked, RequestRefused
from engine.rollout.agents.capture import Call
from engine.rollout.agents.contexts import Context
from engine.rollout.agents.live import Reading
from engine.rollout.renderers.contract import Settled
from engine.serving.models.renderer_messages import Method, RendererCall, RendererReply
from engine.spec.generation import Generated
from engine.spec.message import ToolSchema
from engine.spec.run import RunSpec

MODULE = "engine.serving.models.renderer_main"
MOST_SECONDS = 20.0
"""For one call to be read, or one answer to be taken apart."""
BEGIN_SECONDS = 120.0
"""For the process to start and read the tokenizer."""


class RendererEnded(Exception):
    """The process is gone: how, and what it was doing."""


class RendererProcess:
    """Does one thing after the other.  A process that has ended is begun anew by the next call.

    Belongs to one event loop.  Its methods raise RequestRefused where the model's own files cannot do what is asked, in
    time.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._one_at_a_time = asyncio.Lock()
        self._process: _Process | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.stop_ids: frozenset[int] = frozenset()
        """The ids that end a turn, once it has begun."""
        self.calls_tools = True
        """Whether turns can call tools."""

    @property
    def pid(self) -> int | None:
        """Its process's; None before it has begun, and once it is closed."""
        return None if self._process is None else self._process.pid

    async def begin(self) -> None:
        """Raises ModelFolderRefused, RendererEnded and TimeoutError: the model cannot be read."""
        async with self._one_at_a_time:
            await self._begun()

    async def context(self, asked: Asked, context_tokens: int) -> Context:
        """What the policy reads before its turn."""
        context: Context = await self._asked("context", asked, context_tokens)
        return context

    async def answered(
        self, asked: Asked, context: Context, generated: Generated, id: str, shown: str
    ) -> tuple[Call, list[str]]:
        """The call that a turn makes, and the text of each of its tokens where its log-prob is shown."""
        call, pieces = await self._asked("answered", asked, context, generated, id, shown)
        return call, pieces

    def reading(self, tools: Sequence[ToolSchema]) -> Reading:
        """What cannot be read is not shown while it is sampled; ``answered`` says why."""

        def read(token_ids: Sequence[int], settled: Callable[[Settled], None]) -> None:
            self._started(self._read(tuple(token_ids), tools, settled))

        return read

    def close(self) -> None:
        """End the process; what is asked of it is refused."""
        for task in self._tasks:
            task.cancel()
        if self._process is not None:
            self._process.kill()
        self._process = None

    async def _read(
        self, token_ids: Sequence[int], tools: Sequence[ToolSchema], settled: Callable[[Settled], None]
    ) -> None:
        try:
            settled(await self._in_turn("settled", token_ids, tools))
        except RequestRefused:
            return

    async def _asked(self, method: Method, *arguments: Any) -> Any:
        """To its end, also where the caller is cancelled: who comes next does not wait behind what nobody ends."""
        return await asyncio.shield(self._started(self._in_turn(method, *arguments)))

    def _started(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked has it, or is gone

    async def _in_turn(self, method: Method, *arguments: Any) -> Any:
        """A process may have ended before it was asked, so it is asked twice."""
        async with self._one_at_a_time:
            try:
                try:
                    return await self._answer(method, arguments)
                except RendererEnded:
                    return await self._answer(method, arguments)
            except TimeoutError as error:
                raise _refused(f"were not done after {MOST_SECONDS:g} s") from error
            except RendererEnded as error:
                raise _refused(f"broke off: {error}") from error

    async def _answer(self, method: Method, arguments: tuple[Any, ...]) -> Any:
        return await (await self._begun()).ask(method, arguments, MOST_SECONDS)

    async def _begun(self) -> "_Process":
        if self._process is not None and not self._process.is_gone:
            return self._process
        process = self._process = _Process()
        try:
            await process.open()
            self.stop_ids, self.calls_tools = await process.ask("begin", (self._spec,), BEGIN_SECONDS)
        except BaseException:
            process.kill()
            raise
        return process


class _Process:
    """One process, until it is gone."""

    def __init__(self) -> None:
        self._end, theirs = socket.socketpair()
        self._end.setblocking(False)
        with theirs:
            self._process = started_at(theirs, MODULE, str(os.getpid()))
        self._channel = Channel(self._received, self._ended)
        self._numbers = count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self.is_gone = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def open(self) -> None:
        await self._channel.open(self._end)

    async def ask(self, method: Method, arguments: tuple[Any, ...], most_s: float) -> Any:
        """Raises what the call raised; RendererEnded; TimeoutError, and then the process is gone."""
        number = next(self._numbers)
        try:
            content = pickle.dumps(arguments, protocol=pickle.HIGHEST_PROTOCOL)
        except RecursionError as error:
            raise RequestRefused("malformed", "the request nests its lists and objects too deep") from error
        self._pending[number] = asyncio.get_running_loop().create_future()
        self._channel.send(RendererCall(number, method, content))
        try:
            return await asyncio.wait_for(self._pending[number], most_s)
        except TimeoutError:
            self.kill()
            raise
        finally:
            del self._pending[number]

    def kill(self) -> None:
        """Twice is fine."""
        self.is_gone = True
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def _received(self, messages: list[Any]) -> None:
        for message in messages:
            number, value = RendererReply(*message)
            if (future := self._pending.get(number)) is None or future.done():
                continue
            if isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_result(value)

    def _ended(self) -> None:
        self.kill()  # whoever closes its end of the socket has ended, or does nothing any more
        for future in self._pending.values():
            if not future.done():
                future.set_exception(RendererEnded(f"its process ended with code {self._process.returncode}"))


def _refused(how: str) -> RequestRefused:
    return RequestRefused(
        "template",
        f"the model's tokenizer and chat template {how}: send less or something else, or serve the model with the "
        "template that it came with",
        field="messages",
    )
