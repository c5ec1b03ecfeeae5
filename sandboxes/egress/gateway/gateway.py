"""The gateway of one sandbox: accepts what the kernel sends it, and gives every connection an end and a record.

Fails closed: what is not served is not forwarded.  Connections wait in the kernel's queue until they are
accepted; beyond the capacity they are refused at once, and recorded.
"""

import asyncio
import errno
import functools
import logging
import os
import socket
from collections.abc import Callable, Coroutine

from sandboxes.egress.address import ip
from sandboxes.egress.connection_attempt import ConnectionAttempt
from sandboxes.egress.decision import EgressDecision, decide, quota_reason
from sandboxes.egress.gateway.connection import RESET, Connection
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.egress.gateway.pace import OutOfDescriptors, PacedReader
from sandboxes.egress.gateway.pins import Pins
from sandboxes.egress.gateway.resolver import Resolver
from sandboxes.egress.gateway.upstream import Dial
from sandboxes.egress.log import Traffic

log = logging.getLogger(__name__)
CROWD = 64
"""With so many under way, those that are refused anyway are not looked at any longer."""
MOST_SERVED = 512
AT_ONCE = 128
"""Accepted in one go, before others get a turn."""
DNS_PORT = 53
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Gateway:
    """Serves one listener.  Belongs to one event loop."""

    def __init__(
        self,
        listener: socket.socket,
        ledger: Ledger,
        pins: Pins,
        resolver: Resolver,
        dial: Dial,
        on_attempt: Callable[[str, int], None],
    ) -> None:
        """``on_attempt``: called with address and port of each connection, before there is a record."""
        self.ledger = ledger
        self.pins = pins
        self.dial = dial
        self._resolver = resolver
        self._on_attempt = on_attempt
        self._listener = listener
        self._serving: set[asyncio.Task[None]] = set()
        self._reserve = _descriptor_or_none()
        """Given up for the moment in which a connection is refused for want of descriptors; -1: not to be had."""
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._reader = PacedReader(listener.fileno(), self._accept)

    @property
    def crowded(self) -> bool:
        return len(self._serving) > CROWD

    def accept(self, at_most: int = AT_ONCE) -> int:
        """Take what waits in the queue; return how many there were."""
        try:
            return self._accept(at_most)
        except OutOfDescriptors:
            return 0

    def _accept(self, at_most: int) -> int:
        """Raises ``OutOfDescriptors`` where not even a refusal is possible."""
        for taken in range(at_most):
            try:
                sandbox, _ = self._listener.accept()
            except BlockingIOError:
                return taken
            except OSError as error:
                if error.errno in EXHAUSTED and not self._refused_next(error):
                    return taken
                continue  # else it was reset while it waited: Linux gives those too, so this is another one's error
            sandbox.setblocking(False)
            self._take(sandbox)
        return at_most

    def _refused_next(self, error: OSError) -> bool:
        """End the oldest connection that waits with the descriptor that was kept for this; False if none waits.

        Linux takes a descriptor before it looks at the queue: without one an empty queue is no ``BlockingIOError``.
        """
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
        try:
            sandbox, _ = self._listener.accept()
            self._turn_away(sandbox, self._arrived(sandbox), self.ledger.failed())
            return True
        except BlockingIOError:
            return False
        except OSError:
            raise OutOfDescriptors(error.strerror) from None
        finally:
            self._reserve = _descriptor_or_none()

    def _arrived(self, sandbox: socket.socket) -> ConnectionAttempt:
        address, port = sandbox.getsockname()[:2]
        self._on_attempt(address, port)
        return self.ledger.attempt("tcp", "ipv4" if ip(address).version == 4 else "ipv6", address, port)

    def _take(self, sandbox: socket.socket) -> None:
        attempt = self._arrived(sandbox)
        if (decision := self._refusal(attempt)) is not None:
            self._turn_away(sandbox, attempt, decision)
        elif attempt.port == DNS_PORT:
            # Its quota has been looked at, so it is open from now on, and not only from the task's first step.
            self.ledger.open_connections += 1
            closed = functools.partial(_count_down, self.ledger)
            self._serve(self._resolver.serve_tcp(sandbox, attempt, self.ledger.label)).add_done_callback(closed)
        else:
            self._serve(self._connection(Connection(self, sandbox, attempt)))

    def _refusal(self, attempt: ConnectionAttempt) -> EgressDecision | None:
        """Why it is not served at all: over capacity; of names asked by TCP, over the quota of connections."""
        policy, usage = self.ledger.policy, self.ledger.usage()
        if len(self._serving) >= MOST_SERVED:
            decision = decide(policy, attempt, {}, usage)
            return self.ledger.failed() if decision.allowed else decision
        if attempt.port == DNS_PORT and quota_reason(policy.quotas, usage, attempt) == "quota-connections":
            return EgressDecision(allowed=False, policy=policy.name, reason="quota-connections")
        return None

    def _turn_away(self, sandbox: socket.socket, attempt: ConnectionAttempt, decision: EgressDecision) -> None:
        self.ledger.add(attempt, decision, Traffic(ended="denied"), label=self.ledger.label)
        sandbox.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sandbox.close()

    async def _connection(self, connection: Connection) -> None:
        ledger = self.ledger
        ledger.open_connections += 1
        try:
            await connection.serve()
        finally:
            ledger.open_connections -= 1

    def _serve(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._serving.add(task)
        task.add_done_callback(self._served)
        return task

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "the gateway of sandbox %s failed at a connection, and closed it", self.ledger.sandbox, exc_info=error
            )

    async def cut(self) -> None:
        """End every connection and record what still waits; afterwards all that was tried has been recorded.

        To be called when the sandbox's programs are dead.  The listener goes on.
        """
        waiting = True
        while waiting:
            waiting = self.accept() > 0
            # Let them begin: a task that is cancelled before its first step does not even record.
            await asyncio.sleep(0)
        while self._serving:
            for task in self._serving:
                task.cancel()
            await asyncio.wait(self._serving)

    async def close(self) -> None:
        self._reader.close()
        await self.cut()
        self._listener.close()
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1


def _descriptor_or_none() -> int:
    """One to give up later; -1 where somebody else was faster."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _count_down(ledger: Ledger, _: asyncio.Task[None]) -> None:
    ledger.open_connections -= 1
