"""One connection to the model proxy: requests are read, answered one after the other, and refused in their own form.

Whatever reaches it may be hostile.  Headers, bodies, and the time that each may take are bounded; a caller that hangs
up ends its call.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import h11

from engine.rollout.agents.asked import Asked, RefusalKind, RequestRefused
from engine.rollout.agents.bodies import HeldBody
from engine.rollout.agents.dialects.chat_completions import ChatCompletions
from engine.rollout.agents.dialects.contract import Dialect, EventStream
from engine.rollout.agents.dialects.messages import Messages
from engine.rollout.agents.dialects.responses import Responses
from engine.rollout.agents.door import Answerer, Completed, Door
from engine.rollout.agents.fields import SHOWN_CHARACTERS, document_in
from engine.rollout.agents.live import Live
from engine.rollout.agents.waiting import Interruption, interruptible

DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}
MODELS = "/v1/models"
METHODS = dict.fromkeys(DIALECTS, b"POST") | {MODELS: b"GET"}
MOST_HEADER_BYTES = 16 * 2**10
MOST_BODY_BYTES = 8 * 2**20
READ_AT_ONCE_BYTES = 2**15
READ_BYTES = 2**13
"""At once, and so the most that is read of a head beyond its limit."""
EMPTY_LINES = re.compile(rb"(?:\r?\n){0,4}")
NOTHING_BEGUN = re.compile(EMPTY_LINES.pattern + rb"\r?")
"""Empty lines before a request are ignored, a few at most (RFC 9112, 2.2)."""
ORIGIN = re.compile(rb"\Ahttps?://[^/?#]*", re.IGNORECASE)
BEARER = re.compile(rb"\Abearer +", re.IGNORECASE)
TOO_LONG = (
    f"the request cannot be read: its head, or a line between its chunks, has more than {MOST_HEADER_BYTES} bytes"
)
FAULTS = {
    "Missing mandatory Host": "it has no host header: send one",
    "Found multiple Host": "it has several host headers: send one",
    "conflicting Content-Length": "its lengths contradict each other: send one content-length",
    "bad Content-Length": "its content-length is no number of bytes",
    "multiple Transfer-Encoding": "it has several transfer-encoding headers: send one",
    "Only Transfer-Encoding": "of transfer-encodings there is chunked alone",
    "illegal header line": "one of its lines is no header: use NAME: VALUE",
    "continuation line": "its first header line begins with a space: use NAME: VALUE",
    "illegal request line": "its first line is no request line: use METHOD TARGET HTTP/1.1",
    "no request line": "too many empty lines stand before it",
    "illegal chunk header": "a chunk of its body has no length that can be read",
    "malformed chunk footer": "a chunk of its body is longer or shorter than its length",
    "peer ": "the connection was closed before its end",
}
"""How h11's messages begin -> what was wrong.  Theirs are not sent: they repeat what was received, keys too."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server waits, in seconds."""

    request: float = 30.0
    """From the first byte of a connection, or the end of an answer, to the end of the next request."""
    answer: float = 30.0
    """For the agent to take what it asked for."""


USUAL_PATIENCE = Patience()


class Answers:
    """What all connections of a server are answering."""

    def __init__(self) -> None:
        self.under_way = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """From a request that has been read to the end of what is written for it."""
        self.under_way += 1
        self._none.clear()
        try:
            yield
        finally:
            self.under_way -= 1
            if not self.under_way:
                self._none.set()

    async def over(self) -> None:
        """When this returns there is none."""
        while self.under_way:
            await self._none.wait()


class HttpRefused(RequestRefused):
    """A request that HTTP's own rules refuse: its status is not that of its kind, and ``headers`` say what is taken."""

    def __init__(self, kind: RefusalKind, message: str, status: int, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(kind, message)
        self._status, self.headers = status, headers

    @property
    def status(self) -> int:
        return self._status


class Incoming(asyncio.StreamReader):
    """What a caller sends, and that it has hung up."""

    _answering: Interruption | None = None

    def feed_eof(self) -> None:
        super().feed_eof()
        self._look()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self._look()

    @asynccontextmanager
    async def unless_hung_up(self) -> AsyncIterator[None]:
        """A caller that closes its end does not wait for the answer any more: the block ends with
        ConnectionResetError.  A request that stands behind the one that is answered says that it does."""
        async with interruptible() as self._answering:
            self._look()
            try:
                yield
            finally:
                self._answering = None

    def _look(self) -> None:
        if self._answering is not None and (self.at_eof() or self.exception() is not None):
            self._answering.interrupt(ConnectionResetError("the agent hung up"))


class Connection:
    """Requests one after the other, until one cannot be read."""

    def __init__(
        self,
        door: Door,
        patience: Patience,
        answers: Answers,
        reader: Incoming,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._door, self._patience, self._answers = door, patience, answers
        self._reader, self._writer = reader, writer
        self._http = _http()
        self._path = ""
        self._bodyless = self._is_over = False
        """Whether the answer is a head alone, and whether no other request is answered."""

    async def serve(self) -> None:
        while not self._is_over:
            refuse, held = self._door.refuse, HeldBody()
            try:
                async with asyncio.timeout(self._patience.request):
                    request = await self._request()
                    if request is None:
                        return
                    answerer = self._answerer(request)
                    refuse, held = answerer.refuse, answerer.bodies.held()
                    self._begin(answerer)
                    self._check(request)
                    body = await self._body(held)
                    answerer = self._answerer(request)  # the key may have been revoked while the body came
                with self._answers.one():
                    await self._answered(answerer, body)
            except RequestRefused as refusal:
                refuse(refusal.kind)
                with self._answers.one():
                    await self._refuse(refusal)
            finally:
                held.give_back()
            self._is_over |= self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE

    # ---- what is asked ----

    async def _request(self) -> h11.Request | None:
        """The next one; None where no more of them come.  Raises RequestRefused."""
        behind, closed = self._http.trailing_data  # of the request before
        while not closed and NOTHING_BEGUN.fullmatch(behind):
            more = await self._reader.read(READ_BYTES)
            behind, closed = behind + more, not more
        received = bytearray(EMPTY_LINES.sub(b"", behind, count=1))
        self._http = _http()
        self._bodyless = False
        for data in (received, b"") if closed else (received,):
            self._http.receive_data(bytes(data))
        try:
            event = await self._event(received)
        finally:
            self._path = _path(received)
        if not isinstance(event, h11.Request):
            return None
        self._bodyless = event.method == b"HEAD"
        if len(received) - len(self._http.trailing_data[0]) > MOST_HEADER_BYTES:
            raise HttpRefused("malformed", TOO_LONG, 431)
        if not any(
            name in (b"content-length", b"transfer-encoding") and value != b"0" for name, value in event.headers
        ):
            self._http.next_event()  # the end of a request without a body, which is there at once
        return event

    async def _event(self, received: bytearray | None = None) -> Any:
        """``received`` grows by what is read.  Raises RequestRefused for what is no HTTP."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                more = await self._reader.read(READ_BYTES)
                self._http.receive_data(more)
                if received is not None:
                    received += more
        except h11.RemoteProtocolError as error:
            raise HttpRefused("malformed", _fault(error), error.error_status_hint) from error
        return event

    def _answerer(self, request: h11.Request) -> Answerer:
        """Raises RequestRefused."""
        keys = [BEARER.sub(b"", value, count=1) for name, value in request.headers if name == b"authorization"]
        keys += [value for name, value in request.headers if name == b"x-api-key"]
        if (answerer := self._door.answerer(keys)) is None:
            raise RequestRefused("key", "the key opens nothing here")
        return answerer

    def _begin(self, answerer: Answerer) -> None:
        """Raises RequestRefused; nothing that stands behind such a request is read."""
        try:
            answerer.begin()
        except RequestRefused:
            self._is_over = True
            raise

    def _check(self, request: h11.Request) -> None:
        """Before the body is read.  Raises RequestRefused."""
        if (method := METHODS.get(self._path)) is None:
            raise RequestRefused("route", f"there is POST {', POST '.join(DIALECTS)} and GET {MODELS}")
        if request.method != method:
            raise HttpRefused("route", f"{self._path} takes {method.decode()} alone", 405, (b"allow", method))
        packed = b", ".join(value for name, value in request.headers if name == b"content-encoding")
        if packed.lower() not in (b"", b"identity"):
            shown = packed[:SHOWN_CHARACTERS].decode("ascii", "backslashreplace")
            message = f"content-encoding = {shown}: bodies are not unpacked here; send it unpacked, without this header"
            raise HttpRefused("malformed", message, 415, (b"accept-encoding", b"identity"))
        length = next((value for name, value in request.headers if name == b"content-length"), b"0")
        if int(length) > MOST_BODY_BYTES:
            raise RequestRefused("size", f"the body has {int(length)} bytes: use at most {MOST_BODY_BYTES}")

    async def _body(self, held: HeldBody) -> bytes:
        body = bytearray()
        if self._http.their_state is not h11.SEND_BODY:
            return b""
        if self._http.they_are_waiting_for_100_continue:
            await self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
        while isinstance(event := await self._event(), h11.Data):
            held.take(len(event.data))
            body += event.data
            if len(body) > MOST_BODY_BYTES:
                raise RequestRefused("size", f"the body is too large: use at most {MOST_BODY_BYTES} bytes")
        return bytes(body)

    # ---- what is answered ----

    async def _answered(self, answerer: Answerer, body: bytes) -> None:
        if self._path == MODELS:
            names = answerer.models()
            models = [{"id": name, "object": "model", "created": 0, "owned_by": "palestra"} for name in names]
            await self._send(200, _json({"object": "list", "data": models}))
            return
        dialect = DIALECTS[self._path]
        asked = await _read(dialect, body)
        id = answerer.new_id()
        if asked.stream:
            await self._stream(answerer, dialect.stream(asked, id), asked)
            return
        async with self._reader.unless_hung_up():
            completed = await answerer.complete(asked, None)
        await self._send(200, _json(dialect.answer(asked, completed.calls, id, completed.pieces)))

    async def _stream(self, answerer: Answerer, events: EventStream, asked: Asked) -> None:
        """What is refused before anything was sampled is refused as ever; later it is an event, and the end."""
        live = Live(asked)
        try:
            async with self._reader.unless_hung_up():
                completed = await self._shown(answerer.complete(asked, live), live, events)
        except RequestRefused as refusal:
            if self._http.our_state is not h11.SEND_BODY:
                raise
            answerer.refuse(refusal.kind)
            await self._write(self._data(events.fail(refusal)))
            await self._write(self._http.send(h11.EndOfMessage()))
            return
        await self._write(self._begun(live, events) + self._data(events.end(completed.calls, completed.pieces)))
        await self._write(self._http.send(h11.EndOfMessage()))

    async def _shown(self, answering: Coroutine[Any, Any, Completed], live: Live, events: EventStream) -> Completed:
        """What ``answering`` gives, shown meanwhile; where that fails, as for a caller that does not read, both end."""
        sampling, showing = asyncio.ensure_future(answering), asyncio.ensure_future(self._show(live, events))
        tasks: list[asyncio.Future[Any]] = [sampling, showing]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                showing.result()
            return sampling.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

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

    async def _refuse(self, refusal: RequestRefused) -> None:
        more = list(refusal.headers) if isinstance(refusal, HttpRefused) else []
        if refusal.status in (429, 503):
            more.append((b"retry-after", b"%d" % refusal.retry_s))
        await self._send(refusal.status, _json(_dialect(self._path).refusal(refusal)), more)

    async def _send(self, status: int, body: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
        parts = [self._head(status, b"application/json", [(b"content-length", b"%d" % len(body)), *more])]
        if not self._bodyless:
            parts.append(self._http.send(h11.Data(data=body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        await self._write(b"".join(part for part in parts if part))

    def _head(self, status: int, kind: bytes, more: list[tuple[bytes, bytes]]) -> bytes | None:
        if self._is_over or self._http.their_state is not h11.DONE:  # behind a body that is not read nothing can be
            more = [*more, (b"connection", b"close")]
        return self._http.send(h11.Response(status_code=status, headers=[(b"content-type", kind), *more]))

    async def _write(self, data: bytes | None) -> None:
        """Raises TimeoutError where the agent does not read."""
        if data:
            self._writer.write(data)
            if not self._writer.transport.get_write_buffer_size() and not self._writer.transport.is_closing():
                return
            async with asyncio.timeout(self._patience.answer):
                await self._writer.drain()


async def _read(dialect: Dialect, body: bytes) -> Asked:
    """Others go on while a long one is read."""
    if len(body) <= READ_AT_ONCE_BYTES:
        return dialect.read(document_in(body))
    return await asyncio.to_thread(lambda: dialect.read(document_in(body)))


def _http() -> h11.Connection:
    """For one request: what stands behind it is not its own."""
    return h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEADER_BYTES)


def _path(received: bytearray) -> str:
    """What the first line of a request asks for, without host (RFC 9112, 3.2.2) and query; it may be no request."""
    _, target, *_ = *bytes(received).partition(b"\n")[0].split(maxsplit=2), b"", b""
    return ORIGIN.sub(b"", target, count=1).partition(b"?")[0].decode("ascii", "replace")


def _dialect(path: str) -> Dialect:
    """Whose form an error has, also below an address that is known."""
    below = (dialect for known, dialect in DIALECTS.items() if f"{path}/".startswith(f"{known}/"))
    return next(below, DIALECTS["/v1/chat/completions"])


def _fault(error: h11.RemoteProtocolError) -> str:
    if error.error_status_hint == 431:
        return TOO_LONG
    known = (words for beginning, words in FAULTS.items() if str(error).startswith(beginning))
    return f"the request cannot be read: {next(known, 'it is none of HTTP/1.1')}"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
