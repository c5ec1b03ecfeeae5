"""The network of one sandbox, seen from outside: the sockets that live in it, and who serves them.

``NetnsEntry`` starts with the sandbox; ``Watched`` serves it until it is closed.
"""

import asyncio
import errno
import functools
import marshal
import os
import secrets
import socket
import sys
from collections.abc import Callable
from importlib.resources import files

from sandboxes.egress.gateway.gateway import Gateway
from sandboxes.egress.gateway.ledger import Ledger, OnRecord, OnStatement
from sandboxes.egress.gateway.pins import Pins
from sandboxes.egress.gateway.resolver import Resolver
from sandboxes.egress.gateway.upstream import Upstream
from sandboxes.egress.interception import rules
from sandboxes.egress.interception.calls import Calls, record, socket_filter
from sandboxes.egress.interception.watch import Watch
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord
from sandboxes.observation.filter import seccomp_call
from sandboxes.observation.observation import Observation, OnAction

SYSTEM_PYTHON = "/usr/bin/python3"
INSIDE_ID = 1000
"""Who bubblewrap is in the outer user namespace: anybody but root."""
SOCKETS = 4
BUFFERS = {
    "ipv4/tcp_rmem": "4096 8192 131072",
    "ipv4/tcp_wmem": "4096 16384 131072",
    "ipv4/tcp_max_tw_buckets": "4096",
}
"""Sysctls of a sandbox's network: least, first and largest size of a TCP buffer, which grows while somebody reads."""
FD_BYTES = 4
MOST_TAKEN = 64
"""Rounds of what waits that are taken in one go: more than the kernel's queues hold."""
NETNS_ENTRY = (files("sandboxes.egress.interception") / "netns_entry.py").read_text("utf-8")


class NoNetnsEntry(Exception):
    """The program that makes the network ended before it had done so; it has said why on its stderr."""


class NetnsEntry:
    """Our end of the way on which the sockets come out of a sandbox that is being made."""

    def __init__(self, namespace: int = -1, *, observed: bool = False) -> None:
        """``namespace``: a descriptor of the network to enter, for the program to inherit; else it makes one.

        ``observed``: the filter with a listener is the agent's to add (observation.filter).
        """
        self.observed = observed
        self._expected = SOCKETS if namespace >= 0 or observed else SOCKETS + 1
        self._ours, self.theirs = socket.socketpair()
        self.number = self.theirs.fileno()
        """The number of the other end's descriptor in the program, and in what it becomes."""
        self._ours.setblocking(False)
        asked = b"" if observed else socket_filter()
        kernel = (rules.routes(), rules.rules_batch(), rules.log_request(), asked)
        orders = (INSIDE_ID, rules.GATEWAY_PORT, rules.DNS_PORT, *kernel, seccomp_call(), namespace, BUFFERS)
        blob = marshal.dumps(orders, 2)
        self._ours.send(len(blob).to_bytes(4, "big") + blob)

    def arguments(self) -> list[str]:
        """Return what to put before the command line that is to run in the network."""
        return [SYSTEM_PYTHON, "-I", "-S", "-B", "-c", NETNS_ENTRY, str(self.theirs.fileno())]

    async def descriptors(self) -> list[int]:
        """Listener, resolver's, log, counters; the filter's, if there is one.  Raises ``NoNetnsEntry``."""
        return await self._received(self._expected)

    async def agents_listener(self) -> int:
        """The listener of the filter that an observed sandbox's agent has added.  Raises ``NoNetnsEntry``."""
        return (await self._received(1))[0]

    async def _received(self, expected: int) -> list[int]:
        await _readable(self._ours)
        try:
            word, ancillary, flags, _ = self._ours.recvmsg(1, socket.CMSG_SPACE(expected * FD_BYTES))
        except ConnectionResetError:
            raise NoNetnsEntry from None  # it did not even read its orders
        raw = b"".join(data for _, kind, data in ancillary if kind == socket.SCM_RIGHTS)
        received = [int.from_bytes(raw[at : at + FD_BYTES], sys.byteorder) for at in range(0, len(raw), FD_BYTES)]
        if word != b"!" or len(received) != expected:
            for fd in received:
                os.close(fd)
            if flags & socket.MSG_CTRUNC:  # the kernel keeps what we cannot open
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            raise NoNetnsEntry
        return received

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()


class Watched:
    """Gateway, resolver and watch of one sandbox, and the ledger of its present user.  Belongs to one event loop."""

    def __init__(
        self,
        descriptors: list[int],
        policy: EgressPolicy,
        on_record: OnRecord | None,
        on_statement: OnStatement | None,
        upstream: Upstream,
    ) -> None:
        """``descriptors``: as the namespace entry gave them; without a filter's, refused sockets leave no record."""
        listener, udp, log, counters = (socket.socket(fileno=fd) for fd in descriptors[:SOCKETS])
        self._policy = policy
        self._on_record = on_record
        self._on_statement = on_statement
        self._closed = False
        self._pins = Pins()
        self.ledger = self._new_ledger()
        self._watch = Watch(log, counters, self.ledger)
        asked = functools.partial(self._watch.arrived, "questions", "udp", port=rules.DNS_PORT)
        connected = functools.partial(self._watch.arrived, "connections", "tcp")
        self._resolver = Resolver(udp, self.ledger, self._pins, upstream.look_up, asked)
        self._calls = [Calls(listening, self.ledger) for listening in descriptors[SOCKETS:]]
        self._gateway = Gateway(listener, self.ledger, self._pins, self._resolver, upstream.dial, connected)
        self._observation: Observation | None = None
        self._parts: tuple[Gateway | Resolver | Calls | Watch | Observation, ...]
        self._parts = (self._gateway, self._resolver, *self._calls, self._watch)

    async def observe(
        self, listener: int, agent: int, tasks: int, on_action: OnAction, on_loss: Callable[[str], object]
    ) -> None:
        """Have the sandbox's processes observed from now on.  Raises ``SandboxUnavailable``."""
        self._observation = await Observation.start(listener, agent, tasks, self.ledger, on_action, record, on_loss)
        self._parts = (self._observation, *self._parts)

    async def settled(self) -> None:
        """What was done so far has been told, and what was tried; of a connection that has said nothing yet that is
        when its first bytes have been looked at, soon."""
        if self._observation is not None:
            await self._observation.settled()
        if not self._closed:
            self._take()
            await asyncio.sleep(0)  # a connection reads what it has been sent in its task's first step
            self._watch.count()
            await self._watch.all_reported()

    async def labelled(self) -> None:
        """What is started from now on carries the present label."""
        if self._observation is not None:
            await self._observation.labelled()

    def met_its_limit(self, how: str, count: int) -> None:
        """Tell at how many looks the sandbox had as many processes as it may (``fork``) or half as many (``crowd``)."""
        if self._observation is not None:
            self._observation.counted(how, count)

    def _new_ledger(self) -> Ledger:
        return Ledger(f"sandbox-{secrets.token_hex(8)}", self._policy, self._on_record, self._on_statement)

    def label(self, text: str | None) -> None:
        """What has been tried so far belongs to the label before."""
        self._take()
        self._watch.turn()
        self.ledger.label = text
        if self._observation is not None:
            self._observation.label(text)

    async def records(self, after: int, limit: int) -> list[EgressRecord]:
        """Return what was tried so far, once it is ``settled``."""
        if not self._closed:
            await self.settled()
        return self.ledger.records.batch(after, limit)

    def _take(self) -> None:
        takers = (self._gateway.accept, self._resolver.receive, self._watch.read, *(c.answer for c in self._calls))
        for take in takers:
            for _ in range(MOST_TAKEN):
                if not take():
                    break

    async def cut(self) -> None:
        """End every connection and record all that was tried.  The sandbox's programs are dead by then."""
        for part in self._parts:
            await part.cut()
        self._watch.settle()
        await self._watch.all_reported()

    async def renew(self) -> None:
        """For the next user: nothing pinned, used up, or recorded."""
        await self.cut()
        await self.ledger.flush()
        self._pins.clear()
        self.ledger = self._new_ledger()
        self._watch.renew(self.ledger)
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
