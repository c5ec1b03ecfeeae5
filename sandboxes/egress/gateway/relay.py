"""Bytes between a sandbox and its upstream, both ways: counted, bounded by quotas, stated regularly."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandboxes.egress.decision import Reason
from sandboxes.egress.gateway.first_response import LONGEST_BYTES as ANSWER_BYTES
from sandboxes.egress.gateway.first_response import FirstResponse
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.egress.gateway.opening import Opening, RequestSearch
from sandboxes.egress.gateway.requests import Source, pass_requests
from sandboxes.egress.log import Traffic
from sandboxes.egress.record import OPENING_BYTES, Ended

PIECE_BYTES = 256 * 1024
STATEMENT_S = 5.0
"""How often an open connection says what went over it."""
IDLE_S = 600.0
HALF_CLOSED_S = 30.0
"""How long a sandbox may go on sending to a server that has closed its side."""
State = Callable[[Traffic], None]
Checked = Callable[[Opening], Awaitable[bool]]


class Cut(Exception):
    """The connection must end now."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


@dataclass(slots=True)
class Unstated:
    """What has not been said in a record yet."""

    bytes_up: int = 0
    bytes_down: int = 0
    packets_up: int = 0
    opening_up: bytes = b""
    opening_down: bytes = b""

    def traffic(self, ended: Ended | None) -> Traffic:
        return Traffic(
            self.bytes_up, self.bytes_down, self.packets_up, self.opening_up[:OPENING_BYTES],
            self.opening_down[:OPENING_BYTES], ended,
        )  # fmt: skip


class Relay:
    """The relay of one allowed connection.  ``state`` takes what went over it since the time before."""

    def __init__(self, ledger: Ledger, sandbox: socket.socket, upstream: socket.socket, state: State) -> None:
        self._ledger, self._sandbox, self._upstream, self._state = ledger, sandbox, upstream, state
        self._loop = asyncio.get_running_loop()
        self._unstated = Unstated()
        self._up_bytes = self._down_bytes = 0
        self._answered = asyncio.Event()
        self._answer = FirstResponse()
        self._active_at = self._loop.time()

    async def run(self, up: Callable[[], Awaitable[None]]) -> None:
        """``up`` passes on what the sandbox sends, by the methods below.  Raises ``Cut``, ``Unreadable`` or
        ``OSError``."""
        try:
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(self._tick())
                both = [group.create_task(self._up(up)), group.create_task(self._down())]
                await asyncio.wait(both)
                ticking.cancel()
        except ExceptionGroup as failures:
            raise _first(failures) from None

    def finish(self, ended: Ended) -> None:
        self._state(self._unstated.traffic(ended))

    # -- what the sandbox sends -----------------------------------------------------------------------

    async def _up(self, pass_on: Callable[[], Awaitable[None]]) -> None:
        await pass_on()
        self._upstream.shutdown(socket.SHUT_WR)

    async def bytes_as_they_come(self, first: bytes, *, secret: bool) -> None:
        """``secret``: encrypted; else the beginning is searched for a request, which would pass unread."""
        search = None if secret else RequestSearch()
        if first:
            await self._send_searched(first, search)
        buffer = memoryview(bytearray(PIECE_BYTES))
        while size := await self._loop.sock_recv_into(self._sandbox, buffer):
            await self._send_searched(buffer[:size], search)

    async def _send_searched(self, piece: bytes | memoryview, search: RequestSearch | None) -> None:
        if search is not None:
            search.feed(piece)
        await self.send_up(piece)

    async def requests(self, first: bytes, allowed: Checked) -> None:
        """Plain HTTP: request by request."""
        await pass_requests(Source(first, self._receive_up, self.send_up), self._first_status, allowed)

    async def _receive_up(self) -> bytes:
        return await self._loop.sock_recv(self._sandbox, PIECE_BYTES)

    async def send_up(self, piece: bytes | memoryview) -> None:
        size, quotas = len(piece), self._ledger.policy.quotas
        if self._up_bytes + size > quotas.connection_up_bytes or self._ledger.up_bytes + size > quotas.sandbox_up_bytes:
            raise Cut("quota-bytes-up")
        self._up_bytes += size
        self._ledger.up_bytes += size
        self._unstated.bytes_up += size
        self._unstated.packets_up += 1
        if len(self._unstated.opening_up) < OPENING_BYTES:
            self._unstated.opening_up += bytes(piece[:OPENING_BYTES])
        self._active_at = self._loop.time()
        await self._loop.sock_sendall(self._upstream, piece)

    async def _first_status(self) -> int | None:
        await self._answered.wait()
        return self._answer.status

    # -- what it gets -----------------------------------------------------------------------------

    async def _down(self) -> None:
        buffer = memoryview(bytearray(PIECE_BYTES))
        while size := await self._loop.sock_recv_into(self._upstream, buffer):
            self._count_down(buffer[:size])
            await self._loop.sock_sendall(self._sandbox, buffer[:size])
        self._answer.end()
        self._answered.set()
        self._sandbox.shutdown(socket.SHUT_WR)
        self._active_at = self._loop.time() + HALF_CLOSED_S - IDLE_S

    def _count_down(self, piece: memoryview) -> None:
        size, quotas = len(piece), self._ledger.policy.quotas
        ledger = self._ledger
        if (
            self._down_bytes + size > quotas.connection_down_bytes
            or ledger.down_bytes + size > quotas.sandbox_down_bytes
        ):
            raise Cut("quota-bytes-down")
        self._down_bytes += size
        ledger.down_bytes += size
        self._unstated.bytes_down += size
        if len(self._unstated.opening_down) < OPENING_BYTES:
            self._unstated.opening_down += bytes(piece[:OPENING_BYTES])
        if not self._answer.is_known and self._answer.feed(bytes(piece[:ANSWER_BYTES])):
            self._answered.set()
        self._active_at = self._loop.time()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(STATEMENT_S)
            if self._loop.time() - self._active_at > IDLE_S:
                raise TimeoutError("nothing was sent for too long")
            if self._unstated != Unstated():
                self._state(self._unstated.traffic(None))
                self._unstated = Unstated()


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """The one that says most: our own decision before what the other side did."""
    leaves: list[Exception] = []
    pending: list[Exception] = [failures]
    while pending:
        one = pending.pop()
        if isinstance(one, ExceptionGroup):
            pending += one.exceptions
        else:
            leaves.append(one)
    return min(leaves, key=lambda error: isinstance(error, OSError))
