"""The HTTP of the model proxy: whatever reaches it may be hostile.

A rollout's server listens in the network of its sandbox alone, answers one key, and is gone with the rollout; that of
served models (``engine/serving/models``) answers the keys of teams.  Connections, headers, bodies, and the time that
each may take are bounded; a caller that hangs up ends its call.
"""

import asyncio
import hmac
import json
import logging
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import h11

from engine.rollout.agents.asked import Asked, RequestRefused
from engine.rollout.agents.capture import Call
from engine.rollout.agents.dialects.chat_completions import ChatCompletions
from engine.rollout.agents.dialects.contract import Dialect, EventStream
from engine.rollout.agents.dialects.messages import Messages
from engine.rollout.agents.dialects.responses import Responses
from engine.rollout.agents.fields import document_in
from engine.rollout.agents.live import Live
from engine.rollout.agents.proxy import ModelProxy
from engine.rollout.renderers.contract import Renderer

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}
MODELS = "/v1/models"
MOST_HEADER_BYTES = 16 * 2**10
MOST_BODY_BYTES = 8 * 2**20
MOST_CONNECTIONS = 64
MOST_HELD_BYTES = 4 * MOST_BODY_BYTES
"""The bytes of all bodies that are being received from one agent."""
READ_BYTES = 2**13
"""At once: no more than this is read of headers beyond their limit, which holds for what is incomplete."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server waits, in seconds."""

    request: float = 30.0
    """From the first byte of a connection, or the end of an answer, to the end of the next request."""
    answer: float = 30.0
    """For the agent to take what it asked for."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The turns that were sampled for a request."""

    calls: Sequence[Call]
    renderer: Renderer
    """What shows their tokens as text."""


class Answerer(Protocol):
    """Answers the requests of one key."""

    @property
    def models(self) -> Sequence[str]:
        """The names under which it may be asked."""
        ...

    def new_id(self) -> str:
        """For the next answer."""
        ...

    async def complete(self, asked: Asked, live: Live | None) -> Completed:
        """``live``, where there is one, shows the turns meanwhile.  Raises RequestRefused."""
        ...

    def refuse(self, kind: str) -> None:
        """Count a request that is answered with an error."""
        ...


class Door(Protocol):
    """Knows the keys."""

    def answerer(self, keys: Sequence[bytes]) -> Answerer | None:
        """Who answers a request that brings these keys, which may be none; None where they open nothing."""
        ...

    def refuse(self, kind: str) -> None:
        """Count a request of nobody who is known."""
        ...

    def failed(self) -> None:
        """Take note of an exception, which is being handled, that nobody expected."""
        ...


class RolloutDoor:
    """One key, for one rollout.  A ``Door`` and its ``Answerer``."""

    models = ("policy",)

    def __init__(self, proxy: ModelProxy, key: str) -> None:
        self._proxy, self._key = proxy, key.encode()
        self._ids = count()

    def answerer(self, keys: Sequence[bytes]) -> Answerer | None:
        """Every key that is given must be the right one, and one must be given."""
        return self if keys and all(hmac.compare_digest(key, self._key) for key in keys) else None

    def new_id(self) -> str:
        return str(next(self._ids))

    async def complete(self, asked: Asked, live: Live | None) -> Completed:
        return Completed(await self._proxy.complete(asked, live), self._proxy.renderer)

    def refuse(self, kind: str) -> None:
        self._proxy.refuse(kind)

    def failed(self) -> None:
        if self._proxy.failure is None:  # else the episode raises it
            log.exception("an agent's call failed")
            self._proxy.refuse("failed")


@dataclass(slots=True)
class Bodies:
    """What all connections of a server hold of bodies that have not come to their end."""

    held_bytes: int = 0

    def take(self, received: int) -> None:
        """Raises RequestRefused; what was taken before stays the caller's to give back."""
        if self.held_bytes + received > MOST_HELD_BYTES:
            raise RequestRefused(
                "rate", f"more than {MOST_HELD_BYTES} bytes are under way at once: send less in parallel"
            )
        self.held_bytes += received

    def give_back(self, received: int) -> None:
        self.held_bytes -= received


class ProxyServer:
    def __init__(
        self, door: Door, patience: Patience = Patience(), *, most_connections: int = MOST_CONNECTIONS
    ) -> None:
        self._door, self._patience, self._most_connections = door, patience, most_connections
        self._connections: set[asyncio.Task[None]] = set()
        self._closing = False
        self._bodies = Bodies()

    @asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        """Takes ``listener`` over.  At the end of the block no connection and no call is left."""
        server = await asyncio.start_server(self._connected, sock=listener)
        try:
            yield
        finally:
            self._closing = True
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        if len(self._connections) >= self._most_connections:
            writer.transport.abort()
            return
        self._connections.add(connection)
        # asyncio does so itself where it knows that the listener speaks TCP, which not every listener tells.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await _Connection(self._door, self._patience, self._bodies, reader, writer).serve()
        except (OSError, h11.RemoteProtocolError, TimeoutError):
            log.debug("an agent's connection ended in the middle", exc_info=True)
        except asyncio.CancelledError:
            if not self._closing:
                raise
        except Exception:
            self._door.failed()
        finally:
            self._connections.discard(connection)
            writer.transport.abort()


class _Connection:
    """Requests one after the other, until one cannot be read."""

    def __init__(
        self,
        door: Door,
        patience: Patience,
        bodies: Bodies,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._door, self._patience, self._bodies = door, patience, bodies
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEADER_BYTES)

    async def serve(self) -> None:
        while True:
            dialect: Dialect = DIALECTS["/v1/chat/completions"]
            refuse = self._door.refuse
            try:
                async with asyncio.timeout(self._patience.request):
                    request = await self._event()
                    if not isinstance(request, h11.Request):
                        return
                    dialect = DIALECTS.get(_path(request), dialect)
                    answerer = self._answerer(request)
                    refuse = answerer.refuse
                    self._check(request)
                    body = await self._body()
                await self._answered(answerer, request, dialect, body)
            except RequestRefused as refusal:
                refuse(refusal.kind)
                await self._send(refusal.status, _json(dialect.refusal(refusal)), retry_s=refusal.retry_s)
            except h11.RemoteProtocolError as error:
                refuse("malformed")
                if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await self._send(error.error_status_hint, b'{"error": {"message": "no HTTP request"}}')
                return
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    # ---- what is asked ----

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event

    def _answerer(self, request: h11.Request) -> Answerer:
        """Raises RequestRefused."""
        keys = [value.removeprefix(b"Bearer ") for name, value in request.headers if name == b"authorization"]
        keys += [value for name, value in request.headers if name == b"x-api-key"]
        if (answerer := self._door.answerer(keys)) is None:
            raise RequestRefused("key", "the key opens nothing here")
        return answerer

    def _check(self, request: h11.Request) -> None:
        """Before the body is read.  Raises RequestRefused."""
        path = _path(request)
        if path not in (*DIALECTS, MODELS) or request.method != (b"GET" if path == MODELS else b"POST"):
            raise RequestRefused("route", f"there is POST {', POST '.join(DIALECTS)} and GET {MODELS}")
        length = next((value for name, value in request.headers if name == b"content-length"), b"0")
        if int(length) > MOST_BODY_BYTES:
            raise RequestRefused("size", f"the body has {int(length)} bytes: use at most {MOST_BODY_BYTES}")

    async def _body(self) -> bytes:
        body = bytearray()
        if self._http.they_are_waiting_for_100_continue:
            await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
        try:
            while isinstance(event := await self._event(), h11.Data):
                self._bodies.take(len(event.data))
                body += event.data
                if len(body) > MOST_BODY_BYTES:
                    raise RequestRefused("size", f"the body is too large: use at most {MOST_BODY_BYTES} bytes")
        finally:
            self._bodies.give_back(len(body))
        if not isinstance(event, h11.EndOfMessage):
            raise h11.RemoteProtocolError("the body does not end")
        return bytes(body)

    # ---- what is answered ----

    async def _answered(self, answerer: Answerer, request: h11.Request, dialect: Dialect, body: bytes) -> None:
        if _path(request) == MODELS:
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "palestra"} for name in answerer.models]
            await self._send(200, _json({"object": "list", "data": models}))
            return
        asked = dialect.read(document_in(body))
        id = answerer.new_id()
        if asked.stream:
            await self._stream(answerer, dialect.stream(asked, id), asked)
            return
        completed = await self._unless_hung_up(asyncio.ensure_future(answerer.complete(asked, None)))
        calls, pieces = completed.calls, _pieces(asked, completed)
        await self._send(200, _json(dialect.answer(asked, calls, id, pieces)))

    async def _stream(self, answerer: Answerer, events: EventStream, asked: Asked) -> None:
        """What is refused before anything was sampled is refused as ever; later it is an event, and the end."""
        live = Live(asked)
        sampling = asyncio.ensure_future(answerer.complete(asked, live))
        try:
            completed = await self._unless_hung_up(sampling, self._show(live, events))
        except RequestRefused as refusal:
            if self._http.our_state is not h11.SEND_BODY:
                raise
            answerer.refuse(refusal.kind)
            await self._write(self._data(events.fail(refusal)))
            await self._write(self._http.send(h11.EndOfMessage()))
            return
        await self._write(
            self._begun(live, events) + self._data(events.end(completed.calls, _pieces(asked, completed)))
        )
        await self._write(self._http.send(h11.EndOfMessage()))

    async def _show(self, live: Live, events: EventStream) -> None:
        """Never returns."""
        while True:
            await live.something.wait()
            await self._write(self._begun(live, events))

    def _begun(self, live: Live, events: EventStream) -> bytes:
        """The beginning of a stream, where that has not been sent, and its news."""
        begun = b""
        if self._http.our_state is h11.SEND_RESPONSE:
            begun = self._head(200, b"text/event-stream", [(b"cache-control", b"no-store")]) or b""
            begun += self._data(events.begin(live.prompt_tokens))
        return begun + b"".join(self._data(events.show(choice, more)) for choice, more in live.news())

    def _data(self, events: Iterable[bytes]) -> bytes:
        return b"".join(self._http.send(h11.Data(data=event)) or b"" for event in events)

    async def _unless_hung_up(
        self, sampling: asyncio.Future[Completed], showing: Coroutine[Any, Any, None] | None = None
    ) -> Completed:
        """A caller that closes its end does not wait for the answer any more.  Raises OSError then.

        ``showing`` goes on meanwhile; what it raises ends the call too.
        """
        listening = asyncio.ensure_future(self._reader.read(READ_BYTES))
        beside = [] if showing is None else [asyncio.ensure_future(showing)]
        tasks: list[asyncio.Future[Any]] = [sampling, listening, *beside]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                if more := listening.result():
                    self._http.receive_data(more)  # its next request; a third one is not read before this is answered
                elif not sampling.done():
                    raise ConnectionResetError("the agent hung up")
                tasks.remove(listening)
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for shown in beside:
                if shown.done():
                    shown.result()
            return sampling.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, status: int, body: bytes, *, retry_s: int = 1) -> None:
        more = [(b"content-length", b"%d" % len(body))]
        if status in (429, 503):
            more.append((b"retry-after", b"%d" % retry_s))
        head = self._head(status, b"application/json", more)
        parts = (head, self._http.send(h11.Data(data=body)), self._http.send(h11.EndOfMessage()))
        await self._write(b"".join(part for part in parts if part))

    def _head(self, status: int, kind: bytes, more: list[tuple[bytes, bytes]]) -> bytes | None:
        if self._http.their_state is not h11.DONE:  # a body that is not read: nothing after it can be
            more = [*more, (b"connection", b"close")]
        return self._http.send(h11.Response(status_code=status, headers=[(b"content-type", kind), *more]))

    async def _write(self, data: bytes | None) -> None:
        """Raises TimeoutError where the agent does not read."""
        if data:
            self._writer.write(data)
            async with asyncio.timeout(self._patience.answer):
                await self._writer.drain()


def _pieces(asked: Asked, completed: Completed) -> list[list[str]]:
    shown = completed.renderer
    return [shown.pieces(call.generated.token_ids) if asked.logprobs else [] for call in completed.calls]


def _path(request: h11.Request) -> str:
    return request.target.partition(b"?")[0].decode("ascii", "replace")


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
