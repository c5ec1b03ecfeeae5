"""The network of one box, seen from outside: the sockets that live in it, and who serves them.

``Doorway`` starts with the box; ``Watched`` serves it until it is closed.
"""

import asyncio
import marshal
import os
import platform
import secrets
import socket
import sys
from importlib.resources import files

from sandboxes.egress.gateway.gateway import Gateway
from sandboxes.egress.gateway.ledger import Ledger, OnRecord
from sandboxes.egress.gateway.outside import World
from sandboxes.egress.gateway.pins import Pins
from sandboxes.egress.gateway.resolver import Resolver
from sandboxes.egress.interception import rules
from sandboxes.egress.interception.calls import Calls, socket_filter
from sandboxes.egress.interception.watch import Watch
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord

SYSTEM_PYTHON = "/usr/bin/python3"
INSIDE_ID = 1000
"""Who bubblewrap is in the outer user namespace: anybody but root."""
SOCKETS = 4
SECCOMP_CALL = {"x86_64": 317, "aarch64": 277}
FD_BYTES = 4
MOST_TAKEN = 64
"""Rounds of what waits that are taken in one go: more than the kernel's queues hold."""
DOORWAY = (files("sandboxes.egress.interception") / "doorway.py").read_text("utf-8")


class NoDoorway(Exception):
    """The program that makes the network ended before it had done so; it has said why on its stderr."""


class Doorway:
    """Our end of the way on which the sockets come out of a box that is being made."""

    def __init__(self, namespace: int = -1) -> None:
        """``namespace``: a descriptor of the network to enter, for the program to inherit; else it makes one."""
        self._expected = SOCKETS if namespace >= 0 else SOCKETS + 1
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        kernel = (rules.routes(), rules.rules_batch(), rules.log_request(), socket_filter())
        orders = (INSIDE_ID, rules.GATEWAY_PORT, rules.DNS_PORT, *kernel, SECCOMP_CALL[platform.machine()], namespace)
        blob = marshal.dumps(orders, 2)
        self._ours.send(len(blob).to_bytes(4, "big") + blob)

    def arguments(self) -> list[str]:
        """What to put before the command line that is to run in the network."""
        return [SYSTEM_PYTHON, "-I", "-S", "-B", "-c", DOORWAY, str(self.theirs.fileno())]

    async def descriptors(self) -> list[int]:
        """Listener, resolver's, log, counters; the filter's, if there is one.  Raises ``NoDoorway``."""
        await _readable(self._ours)
        try:
            word, ancillary, _, _ = self._ours.recvmsg(1, socket.CMSG_SPACE(self._expected * FD_BYTES))
        except ConnectionResetError:
            raise NoDoorway from None  # it did not even read its orders
        raw = b"".join(data for _, kind, data in ancillary if kind == socket.SCM_RIGHTS)
        received = [int.from_bytes(raw[at : at + FD_BYTES], sys.byteorder) for at in range(0, len(raw), FD_BYTES)]
        if word != b"!" or len(received) != self._expected:
            for fd in received:
                os.close(fd)
            raise NoDoorway
        return received

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()


class Watched:
    """Gateway, resolver and watch of one box, and the ledger of its present user.  Belongs to one event loop."""

    def __init__(self, descriptors: list[int], policy: EgressPolicy, on_record: OnRecord | None, world: World) -> None:
        """``descriptors``: as the doorway gave them; without a filter's, refused sockets leave no record."""
        listener, udp, log, counters = (socket.socket(fileno=fd) for fd in descriptors[:SOCKETS])
        self._policy = policy
        self._on_record = on_record
        self._closed = False
        self._pins = Pins()
        self.ledger = self._new_ledger()
        self._watch = Watch(log, counters, udp, self.ledger)
        self._resolver = Resolver(udp, self.ledger, self._pins, world.look_up, self._watch.expect_more)
        self._calls = [Calls(listening, self.ledger) for listening in descriptors[SOCKETS:]]
        self._gateway = Gateway(listener, self.ledger, self._pins, self._resolver, world.dial, self._watch.expect_more)
        self._parts: tuple[Gateway | Resolver | Calls | Watch, ...]
        self._parts = (self._gateway, self._resolver, *self._calls, self._watch)

    def _new_ledger(self) -> Ledger:
        return Ledger(f"box-{secrets.token_hex(8)}", self._policy, self._on_record)

    def label(self, text: str | None) -> None:
        """What has been tried so far belongs to the label before."""
        self._take()
        self.ledger.label = text

    async def records(self, after: int, limit: int) -> list[EgressRecord]:
        """What was tried so far; a connection is recorded when its first bytes have been looked at, soon."""
        if not self._closed:
            self._take()
            self._watch.count()
        return self.ledger.records.batch(after, limit)

    def _take(self) -> None:
        takers = (self._gateway.accept, self._resolver.receive, self._watch.read, *(c.answer for c in self._calls))
        for take in takers:
            for _ in range(MOST_TAKEN):
                if not take():
                    break

    async def cut(self) -> None:
        """End every connection and record all that was tried.  The box's programs are dead by then."""
        for part in self._parts:
            await part.cut()
        self._watch.count_unaccepted(self._gateway.accepted)

    async def renew(self) -> None:
        """For the next user: nothing pinned, used up, or recorded."""
        await self.cut()
        await self.ledger.flush()
        self._pins.clear()
        self.ledger = self._new_ledger()
        for part in self._parts:
            part.ledger = self.ledger

    async def close(self) -> None:
        """Twice is fine.  The records stay."""
        if self._closed:
            return
        self._closed = True
        await self.cut()
        for part in self._parts:
            await part.close()
        await self.ledger.flush()


async def _readable(made: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(made.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(made.fileno())
