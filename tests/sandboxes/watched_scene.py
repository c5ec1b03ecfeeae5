"""What the tests of watched sandboxes share: a sandbox, the records of what it tried, and an internet of our own.

The stand-ins listen on the host's loopback; whatever documentation address a gateway dials leads there.
A guard refuses to start an attack where there is any way out but the sandbox's own loopback.
"""

import asyncio
import socket
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sandboxes.egress.gateway.upstream import Upstream
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord
from sandboxes.egress.rule import Rule
from sandboxes.interface import ExecResult, Sandbox
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec

PROLOGUE = """
import os, socket, struct, sys, time
tries = 0
def attempt(call, *arguments):
    # Counts, and prints how it ended; whatever the network answers is no error of the program.
    global tries
    tries += 1
    try:
        print(call.__name__, call(*arguments))
    except OSError as error:
        print(call.__name__, type(error).__name__, error.strerror or error)
def tcp(address, port, say=b"", family=None):
    made = socket.socket(family or (socket.AF_INET6 if ":" in address else socket.AF_INET), socket.SOCK_STREAM)
    made.settimeout(5)
    made.connect((address, port))
    made.sendall(say)
    got = b""
    while piece := made.recv(65536):
        got += piece
    return got
def udp(address, port, say=b"x", family=None, protocol=0):
    made = socket.socket(family or (socket.AF_INET6 if ":" in address else socket.AF_INET), socket.SOCK_DGRAM, protocol)
    made.settimeout(0.3)
    made.sendto(say, (address, port))
    return made.recv(65536)
def query(name, kind=1, number=7, labels=None):
    labels = labels or [part.encode() for part in name.split(".")]
    body = b"".join(bytes([len(part)]) + part for part in labels) + b"\\0" + struct.pack("!HH", kind, 1)
    return struct.pack("!6H", number, 256, 1, 0, 0, 0) + body
"""
UPLINKS = """
import os
devices = [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
routes = [line.split() for line in open("/proc/net/route").read().splitlines()[1:]]
routes6 = [line.split() for line in open("/proc/net/ipv6_route").read().splitlines()]
print(sorted(
    {name for name in devices if name != "lo"}
    | {fields[0] for fields in routes if fields[1] == "00000000" and fields[0] != "lo"}
    | {fields[9] for fields in routes6 if set(fields[0]) == {"0"} and fields[9] != "lo"}
))
"""
"""Prints what leads out of the network namespace that it runs in, the sandbox's own loopback aside."""


class AttackRefused(Exception):
    """The harness starts no attack where its traffic could get anywhere."""


@dataclass
class Scene:
    sandbox: Sandbox
    records: list[EgressRecord] = field(default_factory=list)
    tried: int = 0
    """Attempts that the programs in the sandbox say they made."""

    async def attack(self, program: str, **options: float) -> ExecResult:
        """Run a program that counts what it tries in ``tries``."""
        await refuse_other_ways_out(self.sandbox)
        code = PROLOGUE + textwrap.dedent(program) + "\nprint('tries', tries)"
        result = await self.sandbox.exec(["/usr/bin/python3", "-S", "-c", code], **options)
        last = result.stdout.splitlines()[-1:] or [""]
        assert last[0].startswith("tries "), result
        self.tried += int(last[0].split()[1])
        return result

    @property
    def attempts(self) -> list[EgressRecord]:
        return [record for record in self.records if record.phase == "attempt"]

    @property
    def recorded(self) -> int:
        return sum(record.count for record in self.attempts)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def refuse_other_ways_out(sandbox: Sandbox) -> None:
    seen = await sandbox.exec(["/usr/bin/python3", "-S", "-c", UPLINKS])
    if seen.outcome != "ok" or seen.stdout != "[]\n":
        raise AttackRefused(f"there is a way out of this sandbox: {seen.stdout or seen.stderr}")


def allowing(*hosts: str, ports: tuple[int | str, ...] = (80, 443), **options: object) -> EgressPolicy:
    rule = Rule(name="site", action="allow", hosts=hosts, ports=ports, **options)
    return EgressPolicy(name="site-only", rules=(rule,))


async def nobody(address: str, port: int) -> socket.socket:
    raise AssertionError(f"the gateway dialled {address}:{port}")


async def no_names(name: str, family: socket.AddressFamily) -> list[str]:
    raise AssertionError(f"the resolver asked for {name}")


NOWHERE = Upstream(nobody, no_names)


@asynccontextmanager
async def scene(
    policy: EgressPolicy | None = None, upstream: Upstream = NOWHERE, **spec: object
) -> AsyncIterator[Scene]:
    """A watched sandbox.  When this ends the sandbox is closed, and every attempt must have been recorded."""
    given = {"timeout_s": 20, "memory_mib": 256, "processes": 32} | spec
    records: list[EgressRecord] = []
    async with opened(SandboxSpec(network="watched", egress=policy, **given), records.append, upstream) as sandbox:
        staged = Scene(sandbox, records)
        yield staged
    for user in {record.attempt.sandbox for record in records}:
        numbers = [record.seq for record in records if record.attempt.sandbox == user]
        assert numbers == list(range(1, len(numbers) + 1))


class Internet:
    """Names and servers for a gateway: ``names`` to addresses, (address, port) to a server on our loopback."""

    def __init__(self, names: dict[str, list[str]] | None = None) -> None:
        self.names = names or {}
        self.looked_up: list[str] = []
        self.dialled: list[tuple[str, int]] = []
        self._servers: dict[tuple[str, int], int] = {}
        self._running: list[asyncio.Server] = []

    @property
    def upstream(self) -> Upstream:
        return Upstream(self._dial, self._look_up)

    async def serve(self, address: str, port: int, handler: Callable, **options: object) -> None:
        server = await asyncio.start_server(handler, "127.0.0.1", 0, **options)
        self._running.append(server)
        self._servers[address, port] = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        for server in self._running:
            server.close()

    async def _dial(self, address: str, port: int) -> socket.socket:
        self.dialled.append((address, port))
        if (address, port) not in self._servers:
            raise ConnectionRefusedError(111, "Connection refused")
        made = socket.socket()
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self._servers[address, port]))
        return made

    async def _look_up(self, name: str, family: socket.AddressFamily) -> list[str]:
        self.looked_up.append(name)
        found = self.names.get(name, [])
        return [address for address in found if (":" in address) == (family == socket.AF_INET6)]
