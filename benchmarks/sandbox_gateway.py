"""One connection, downloading as fast as it can: through the gateway of a watched sandbox, through proxies, directly.

The source is a process of its own on this machine's loopback; the address that the sandbox connects to is one for
documentation, and the gateway's ``Upstream`` leads it there.  Gateway and proxies run in this process's event loop.
"""

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

from benchmarks.sandbox_report import GATEWAY
from sandboxes.egress.gateway.relay import PIECE_BYTES
from sandboxes.egress.gateway.upstream import Upstream
from sandboxes.egress.policy import EgressPolicy, Quotas
from sandboxes.egress.rule import Rule
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec

ADDRESS, PORT = "203.0.113.7", 9000
LOOPBACK = "127.0.0.1"
UNBOUNDED_BYTES = 2**50
SLACK_S = 30.0
INTERPRETER = ("/usr/bin/python3", "-S", "-c")
SOURCE = f"""
import os, socket, sys, threading
listener = socket.create_server(("{LOOPBACK}", 0))
print(listener.getsockname()[1], flush=True)
piece = bytes({PIECE_BYTES})
def send(connection):
    try:
        connection.recv(16)
        while True:
            connection.sendall(piece)
    except OSError:
        connection.close()  # the other side has enough
def serve():
    while True:
        threading.Thread(target=send, args=listener.accept()[:1], daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
sys.stdin.read()  # until whoever started this ends
"""
SINK = f"""
import socket, sys, time
address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
connection = socket.create_connection((address, port), {SLACK_S})
connection.sendall(b"go\\n")
buffer, got = bytearray({PIECE_BYTES}), 0
connection.recv_into(buffer, 1)  # the clock starts with the first byte
started = time.perf_counter()
while (took := time.perf_counter() - started) < seconds:
    size = connection.recv_into(buffer)
    if not size:
        sys.exit(f"cut after {{got}} bytes")
    got += size
print(got, took)
"""
POLICY = EgressPolicy(
    name="bench",
    rules=(Rule(name="source", action="allow", cidrs=(f"{ADDRESS}/32",), ports=(PORT,)),),
    quotas=Quotas(connection_down_bytes=UNBOUNDED_BYTES, sandbox_down_bytes=UNBOUNDED_BYTES),
)

Transfer = Callable[[], Awaitable[float]]
"""Gbit/s of one download."""


@asynccontextmanager
async def transfers(seconds: float) -> AsyncIterator[dict[str, Transfer]]:
    """Downloads of ``seconds`` each, by their kind; everything that they need ends with the block."""
    source = subprocess.Popen([*INTERPRETER, SOURCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        assert source.stdout is not None
        port = int(source.stdout.readline())
        spec = SandboxSpec(network="watched", egress=POLICY, timeout_s=seconds + SLACK_S)
        async with (
            opened(spec, upstream=_upstream(port)) as sandbox,
            _streams_proxy(port) as streams,
            _sockets_proxy(port) as sockets,
        ):

            async def through_the_gateway() -> float:
                done = await sandbox.exec([*INTERPRETER, SINK, ADDRESS, str(PORT), str(seconds)])
                if done.outcome != "ok":
                    raise RuntimeError(f"the transfer through the gateway failed: {done}")
                return _gbit_per_s(done.stdout)

            yield {
                GATEWAY: through_the_gateway,
                "sockets proxy, Gbit/s": partial(_from_here, sockets, seconds),
                "streams proxy, Gbit/s": partial(_from_here, streams, seconds),
                "direct, Gbit/s": partial(_from_here, port, seconds),
            }
    finally:
        source.kill()
        source.wait()


async def _from_here(port: int, seconds: float) -> float:
    sink = await asyncio.create_subprocess_exec(
        *INTERPRETER, SINK, LOOPBACK, str(port), str(seconds), stdout=subprocess.PIPE
    )
    output, _ = await sink.communicate()
    if sink.returncode:
        raise RuntimeError(f"a transfer on loopback failed ({sink.returncode})")
    return _gbit_per_s(output.decode())


def _gbit_per_s(output: str) -> float:
    got, took_s = output.split()
    return int(got) * 8 / float(took_s) / 1e9


def _upstream(port: int) -> Upstream:
    async def dial(address: str, at: int) -> socket.socket:
        if (address, at) != (ADDRESS, PORT):
            raise ConnectionRefusedError(f"this benchmark has no {address}:{at}")
        return await _connected(port)

    async def look_up(name: str, family: socket.AddressFamily) -> list[str]:
        return []

    return Upstream(dial, look_up)


async def _connected(port: int) -> socket.socket:
    made = socket.socket()
    try:
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, (LOOPBACK, port))
    except BaseException:
        made.close()
        raise
    return made


@asynccontextmanager
async def _streams_proxy(port: int) -> AsyncIterator[int]:
    """As one writes it: streams, both ways."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(LOOPBACK, port, limit=PIECE_BYTES)
        await _until_one_ends(_pass_on(reader, back), _pass_on(there, writer))
        back.close()
        writer.close()

    async with await asyncio.start_server(serve, LOOPBACK, 0, limit=PIECE_BYTES) as server:
        yield server.sockets[0].getsockname()[1]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()


@asynccontextmanager
async def _sockets_proxy(port: int) -> AsyncIterator[int]:
    """With the calls that the gateway's relay makes, and nothing else of it."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        listener.setblocking(False)
        serving = asyncio.create_task(_serve(listener, port))
        try:
            yield listener.getsockname()[1]
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving


async def _serve(listener: socket.socket, port: int) -> None:
    """One connection after the other: there are never two."""
    while True:
        near, _ = await asyncio.get_running_loop().sock_accept(listener)
        with near, await _connected(port) as far:
            await _until_one_ends(_copy(near, far), _copy(far, near))


async def _copy(source: socket.socket, sink: socket.socket) -> None:
    loop, buffer = asyncio.get_running_loop(), memoryview(bytearray(PIECE_BYTES))
    while size := await loop.sock_recv_into(source, buffer):
        await loop.sock_sendall(sink, buffer[:size])


async def _until_one_ends(*ways: Awaitable[None]) -> None:
    """Whoever has enough hangs up in the middle, which is no error of a proxy."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, Exception) and not isinstance(end, ConnectionError):
                raise end
