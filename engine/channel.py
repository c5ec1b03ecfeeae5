"""Python objects between a process and those that it started, over a socket pair: whole, in order, none lost.

What is sent in one turn of the event loop travels in one message, since a message costs about as much as a few sampled
tokens.  Both ends run the same code and trust each other: one is the other's child.
"""

import asyncio
import pickle
import socket
from collections.abc import Callable
from typing import Any, cast

LENGTH_BYTES = 8


def portable(error: Exception) -> Exception:
    """The error, or what it says where it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class Channel(asyncio.Protocol):
    """One end.  ``received`` gets what the other end has sent in one turn; ``ended`` is called when that is gone."""

    def __init__(self, received: Callable[[list[Any]], None], ended: Callable[[], None]) -> None:
        self._received, self._ended = received, ended
        self._transport: asyncio.Transport | None = None
        self._read = bytearray()
        self._outgoing: list[Any] = []

    async def open(self, end: socket.socket) -> None:
        """Serve this end of the pair on the running loop, and close it.  What comes may come before this returns."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=end)

    def send(self, message: Any) -> None:
        """Send it with all others of this turn of the loop.  What is sent to an end that is gone is dropped."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(message)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's, which Ray uses, is no subclass of it

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (message := self._next()) is not None:
            self._received(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()

    def _next(self) -> list[Any] | None:
        if len(self._read) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + int.from_bytes(self._read[:LENGTH_BYTES], "little")
        if len(self._read) < end:
            return None
        message: list[Any] = pickle.loads(self._read[LENGTH_BYTES:end])
        del self._read[:end]
        return message

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and not self._transport.is_closing():
            content = pickle.dumps(outgoing, protocol=pickle.HIGHEST_PROTOCOL)
            self._transport.write(len(content).to_bytes(LENGTH_BYTES, "little") + content)
