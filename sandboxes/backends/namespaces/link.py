"""The host's end of an agent's socket: requests out, replies in, nothing believed.

The sandbox is not trusted, so a frame may be as long as an open request allows and no longer, and
whatever does not parse ends the sandbox.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from sandboxes.backends.namespaces.inside import frames
from sandboxes.interface import SandboxFrozen, SandboxLost


@dataclass(frozen=True, slots=True)
class Reply:
    kind: int
    payload: bytes


class Link(asyncio.Protocol):
    """Many requests may be under way; each has a number and a future."""

    def __init__(self, on_loss: Callable[[str], object]) -> None:
        self._on_loss = on_loss
        self._waiting: dict[int, tuple[asyncio.Future[Reply], int]] = {}
        self._inbox = bytearray()
        self._last_number = 0
        self._transport: asyncio.Transport | None = None
        self.hello: asyncio.Future[Reply] = self._expect(0, 0)

    def _expect(self, number: int, largest_bytes: int) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (future, largest_bytes)
        return future

    @property
    def asked(self) -> int:
        """How many requests there were."""
        return self._last_number

    def send(self, blob: bytes) -> None:
        """Bytes that are no request: the agent's own code."""
        if self._transport is not None:
            self._transport.write(blob)

    def ask(self, verb: str, arguments: tuple[object, ...], *, largest_bytes: int) -> tuple[int, asyncio.Future[Reply]]:
        """Send a request; return its number and the future of its reply, of at most ``largest_bytes``."""
        self._last_number += 1
        self.send(frames.request(self._last_number, verb, arguments))
        return self._last_number, self._expect(self._last_number, largest_bytes)

    def notify(self, verb: str, *arguments: object) -> None:
        """Send a request that has no reply."""
        self.send(frames.request(0, verb, arguments))

    def fail(self, kind: type[SandboxLost] | type[SandboxFrozen], reason: str) -> None:
        """Everybody who waits learns that the sandbox is lost, or frozen."""
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(kind(reason))
                future.exception()  # nobody may be waiting any more: that is no error of its own

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's, which Ray uses, is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_loss("its agent ended" if exc is None else f"its agent's socket failed: {exc}")

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        try:
            while (reply := self._next()) is not None:
                self._settle(*reply)
        except frames.MalformedFrame as error:
            self._inbox.clear()
            self._on_loss(f"its agent broke the protocol: {error}")

    def _next(self) -> tuple[int, Reply] | None:
        if len(self._inbox) < frames.LENGTH.size:
            return None
        (length,) = frames.LENGTH.unpack_from(self._inbox)
        largest = max((most for _, most in self._waiting.values()), default=0)
        if not frames.REPLY_HEAD.size <= length <= largest + frames.OVERHEAD_BYTES:
            raise frames.MalformedFrame(f"a frame of {length} bytes")
        end = frames.LENGTH.size + length
        if len(self._inbox) < end:
            return None
        number, kind = frames.REPLY_HEAD.unpack_from(self._inbox, frames.LENGTH.size)
        payload = bytes(self._inbox[frames.LENGTH.size + frames.REPLY_HEAD.size : end])
        del self._inbox[:end]
        return number, Reply(kind, payload)

    def _settle(self, number: int, reply: Reply) -> None:
        if number not in self._waiting:
            raise frames.MalformedFrame(f"a reply to request {number}, which is not open")
        future, _ = self._waiting.pop(number)
        if not future.done():
            future.set_result(reply)
