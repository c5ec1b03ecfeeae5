"""A rollout worker's way to a generator in another process: many small calls, few messages.

A message between processes costs about as much as a dozen sampled tokens, and an episode asks
several times.  So calls that come up in the same turn of the event loop travel together, and
so do the replies that are ready when somebody asks for them:

    generate() ─┐                       ┌─► generator.generate()
    generate() ─┼─► submit([...]) ──────┼─► generator.generate()
    rewind()   ─┤                       ├─► generator.rewind()
    release()  ─┘                       │
    futures  ◄───── replies() ◄── ready ┘      one such call is always under way

``GeneratorClient`` lives with the rollout worker, ``GeneratorServer`` with the generator.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.rollout.policy_session import generated_for
from engine.spec.generation import Generated, GenerateRequest, OnToken, TextGenerator


@dataclass(frozen=True, slots=True)
class RewindRequest:
    """``TextGenerator.rewind`` on its way."""

    session: str
    tokens: int


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A turn of which tokens are wanted as they are sampled."""

    request: GenerateRequest

    @property
    def session(self) -> str:
        return self.request.session


@dataclass(slots=True)
class Tokens:
    """What a turn under way has sampled since the last message, with the log-prob of each."""

    sampled: list[tuple[int, float]] = field(default_factory=list)


GeneratorCall = GenerateRequest | StreamRequest | RewindRequest
"""A session has one under way at most: a second one would need the first one's answer."""
GeneratorReply = tuple[str, Generated | Tokens | None | Exception]
"""A session, and what came of its turn; None if it was rewound.  ``Tokens`` stand before the turn that they are of."""
STREAMED_EVERY_S = 0.05
"""Tokens alone make a message no more often."""


class GeneratorLost(Exception):
    """The generator is gone: what was asked of it has to be asked of another one, from each session's beginning."""


class GeneratorConnection(Protocol):
    """The two messages, however they travel.  Any exception means that the generator is gone."""

    async def submit(self, requests: Sequence[GeneratorCall], released: Sequence[str]) -> None: ...

    async def replies(self) -> list[GeneratorReply]: ...

    async def disconnect(self) -> None: ...


class GeneratorClient:
    """A ``TextGenerator`` over a ``GeneratorConnection``.  For one collection: close it when the episodes are over."""

    def __init__(self, connection: GeneratorConnection) -> None:
        self._connection = connection
        self._outgoing: list[GeneratorCall] = []
        self._released: list[str] = []
        self._pending: dict[str, asyncio.Future[Any]] = {}
        self._listeners: dict[str, OnToken] = {}
        self._lost: GeneratorLost | None = None
        self._listening: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None

    async def generate(self, request: GenerateRequest) -> Generated:
        """Raises GeneratorLost, and what the generator raises for this request."""
        generated: Generated = await self._answered(request)
        return generated

    async def stream(self, request: GenerateRequest, on_token: OnToken) -> Generated:
        """``generate``, with its tokens as messages bring them."""
        self._listeners[request.session] = on_token
        try:
            generated: Generated = await self._answered(StreamRequest(request))
        finally:
            del self._listeners[request.session]
        return generated

    async def rewind(self, session: str, tokens: int) -> None:
        """Raises GeneratorLost, and what the generator raises."""
        await self._answered(RewindRequest(session, tokens))

    async def _answered(self, request: GeneratorCall) -> Any:
        if self._lost is not None:
            raise self._lost
        future = self._pending[request.session] = asyncio.get_running_loop().create_future()
        self._outgoing.append(request)
        self._send_soon()
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        try:
            return await future
        finally:
            self._pending.pop(request.session, None)

    async def release(self, session: str) -> None:
        """The release is sent; nobody needs to wait for it."""
        if self._lost is None:
            self._outgoing = [request for request in self._outgoing if request.session != session]
            self._released.append(session)
            self._send_soon()

    async def close(self) -> None:
        """Send what is left to send and stop listening."""
        if self._sending is not None:
            await self._sending
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        if self._lost is None:
            await self._connection.disconnect()

    def _send_soon(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        await asyncio.sleep(0)  # whoever is ready to ask now asks with us
        while self._outgoing or self._released:
            requests, self._outgoing = self._outgoing, []
            released, self._released = self._released, []
            try:
                await self._connection.submit(requests, released)
            except Exception as error:
                return self._lose(error)
        return None

    async def _listen(self) -> None:
        while self._lost is None:
            try:
                replies = await self._connection.replies()
            except Exception as error:
                return self._lose(error)
            for session, answer in replies:
                self._settle(session, answer)
        return None

    def _settle(self, session: str, answer: Generated | Tokens | None | Exception) -> None:
        if isinstance(answer, Tokens):
            if (on_token := self._listeners.get(session)) is not None:
                for token, logprob in answer.sampled:
                    on_token(token, logprob)
            return
        future = self._pending.get(session)
        if future is None or future.done():
            return  # its episode was cancelled meanwhile
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _lose(self, error: Exception) -> None:
        self._lost = GeneratorLost(str(error) or type(error).__name__)
        self._lost.__cause__ = error
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._lost)


@dataclass
class _Replies:
    ready: list[GeneratorReply] = field(default_factory=list)
    something: asyncio.Event = field(default_factory=asyncio.Event)
    sessions: set[str] = field(default_factory=set)
    streamed: dict[str, Tokens] = field(default_factory=dict)
    """By their sessions: what has not been fetched."""

    def sampled(self, session: str, token: int, logprob: float) -> None:
        if not self.streamed:
            asyncio.get_running_loop().call_later(STREAMED_EVERY_S, self.something.set)
        self.streamed.setdefault(session, Tokens()).sampled.append((token, logprob))


class GeneratorServer:
    """Takes many workers' calls to one generator and keeps the replies until they are fetched."""

    def __init__(self, generator: TextGenerator) -> None:
        self._generator = generator
        self._callers: dict[str, _Replies] = {}
        self._turns: set[asyncio.Task[None]] = set()

    async def submit(self, caller: str, requests: Sequence[GeneratorCall], released: Sequence[str]) -> None:
        queue = self._caller(caller)
        for session in released:
            queue.sessions.discard(session)
            await self._generator.release(session)
        for request in requests:
            queue.sessions.add(request.session)
            turn = asyncio.create_task(self._turn(queue, request))
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def replies(self, caller: str) -> list[GeneratorReply]:
        """Return what is ready; waits until something is.  Not for two at once of one caller."""
        queue = self._caller(caller)
        await queue.something.wait()
        queue.something.clear()
        ready, queue.ready = queue.ready, []
        streamed, queue.streamed = queue.streamed, {}
        return [*streamed.items(), *ready]

    async def disconnect(self, caller: str) -> None:
        """The caller is done, or dead: end its sessions, so that others get their slots."""
        if (queue := self._callers.pop(caller, None)) is not None:
            queue.something.set()
            for session in queue.sessions:
                await self._generator.release(session)

    def _caller(self, name: str) -> _Replies:
        return self._callers.setdefault(name, _Replies())

    async def _turn(self, queue: _Replies, request: GeneratorCall) -> None:
        try:
            answer: Generated | None | Exception = await self._asked(queue, request)
        except Exception as error:  # travels to the one who asked
            answer = error
        queue.ready.append((request.session, answer))
        queue.something.set()

    async def _asked(self, queue: _Replies, request: GeneratorCall) -> Generated | None:
        if isinstance(request, RewindRequest):
            await self._generator.rewind(request.session, request.tokens)
            return None
        if isinstance(request, StreamRequest):
            session = request.session
            return await generated_for(
                self._generator, request.request, lambda token, logprob: queue.sampled(session, token, logprob)
            )
        return await self._generator.generate(request)
