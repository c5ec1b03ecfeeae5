"""One decoder's process, as the generator that started it sees it."""

import asyncio
import socket
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from engine.channel import Channel
from engine.child_process import started_at
from engine.inference.torch.decoder_messages import STARTED, Begin, Call, DecoderReply, Method, StreamedToken
from engine.spec.generation import Generated, GenerateRequest, OnToken

__all__ = ["DecoderEnded", "DecoderProcess"]


class DecoderEnded(Exception):
    """The process is gone, and with it all that it held."""


class DecoderProcess:
    """Begins at once; ``connected`` waits until it answers.  All calls but ``close`` from one event loop.

    ``ended`` is called once, on that loop, when the process is gone and nobody has closed it.
    """

    def __init__(self, number: int, begin: Begin, ended: Callable[["DecoderProcess"], None]) -> None:
        self.number, self.began_at = number, time.time()
        self.stats: dict[str, float] = {}
        """As of its last answer."""
        self.in_hand = 0
        """Turns that are under way."""
        self._begin, self._tell_ended = begin, ended
        self._end, theirs = socket.socketpair()
        self._end.setblocking(False)
        with theirs:
            self._process = started_at(theirs, "engine.inference.torch.decoder_main")
        self._channel: Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = count(STARTED + 1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._listeners: dict[int, OnToken] = {}
        self.is_gone = False
        self._how = f"decoder {number} has not begun"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_connected(self) -> bool:
        return self._channel is not None

    async def connected(self) -> None:
        """Raises DecoderEnded, and what the decoder raised when it was made."""
        self._loop = asyncio.get_running_loop()
        started = self._pending[STARTED] = self._loop.create_future()
        channel = Channel(self._received, self._ended)
        await channel.open(self._end)
        channel.send(self._begin)
        self._channel = channel
        await started

    async def ask(self, method: Method, *arguments: Any) -> Any:
        """Raises DecoderEnded, and what the decoder raises."""
        return await self._sent(next(self._numbers), method, arguments)

    async def generate(self, request: GenerateRequest, on_token: OnToken | None) -> Generated:
        """One turn.  Raises as ``ask`` does."""
        number = next(self._numbers)
        self.in_hand += 1
        if on_token is not None:
            self._listeners[number] = on_token
        try:
            generated: Generated = await self._sent(number, "generate" if on_token is None else "stream", (request,))
            return generated
        finally:
            self.in_hand -= 1
            self._listeners.pop(number, None)

    def refuse_gone(self) -> None:
        """Raises DecoderEnded where the process has ended."""
        if self.is_gone:
            raise DecoderEnded(self._how)

    def release(self, session: str) -> None:
        """The release is sent; nobody needs to wait for it."""
        if self._channel is not None and not self.is_gone:
            self._channel.send(Call(next(self._numbers), "release", (session,)))

    def close(self) -> None:
        """End the process; what was asked of it raises DecoderEnded.  Twice is fine, also when the loop is over."""
        self._tell_ended = _nobody
        self._process.kill()
        self._process.wait()
        if self._channel is None:
            self._end.close()
        elif self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._channel.close)

    async def _sent(self, number: int, method: Method, arguments: tuple[Any, ...]) -> Any:
        self.refuse_gone()
        assert self._channel is not None  # ``connected`` comes first
        self._pending[number] = asyncio.get_running_loop().create_future()
        self._channel.send(Call(number, method, arguments))
        try:
            return await self._pending[number]
        finally:
            self._pending.pop(number, None)

    def _received(self, messages: list[Any]) -> None:
        for message in messages:
            if isinstance(message, StreamedToken):
                if (on_token := self._listeners.get(message.number)) is not None:
                    on_token(message.token, message.logprob)
                continue
            number, value, self.stats = DecoderReply(*message)
            future = self._pending.get(number)
            if future is None or future.done():
                continue  # a release, or whoever asked has stopped waiting
            if isinstance(value, Exception):
                future.set_exception(value)
            else:
                future.set_result(value)

    def _ended(self) -> None:
        self.is_gone = True
        code = self._process.wait()  # its end of the socket is closed: it has ended, or ends now
        self._how = f"decoder {self.number} ended with code {code}"
        for future in self._pending.values():
            if not future.done():
                future.set_exception(DecoderEnded(self._how))
        self._tell_ended(self)


def _nobody(process: DecoderProcess) -> None:
    """Whoever closes a process knows that it ends."""
