"""The gateway of one box: accepts what the kernel sends it, and gives every connection an end and a record.

Fails closed: what is not served is not forwarded.  Connections wait in the kernel's queue until they are
accepted; beyond the capacity they are refused at once, and recorded.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine

from sandboxes.egress.address import ip
from sandboxes.egress.attempt import Attempt
from sandboxes.egress.gateway.connection import RESET, Connection
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.egress.gateway.outside import Dial
from sandboxes.egress.gateway.pins import Pins
from sandboxes.egress.gateway.resolver import Resolver
from sandboxes.egress.log import Traffic
from sandboxes.egress.verdict import decide

log = logging.getLogger(__name__)
CROWD = 64
"""With so many under way, those that are refused anyway are not looked at any longer."""
MOST_SERVED = 512
AT_ONCE = 128
"""Accepted in one go, before others get a turn."""
DNS_PORT = 53


class Gateway:
    """Serves one listener.  Belongs to one event loop."""

    def __init__(
        self,
        listener: socket.socket,
        ledger: Ledger,
        pins: Pins,
        resolver: Resolver,
        dial: Dial,
        on_attempt: Callable[[], None],
    ) -> None:
        self.ledger = ledger
        self.pins = pins
        self.dial = dial
        self._resolver = resolver
        self._on_attempt = on_attempt
        self._listener = listener
        self._serving: set[asyncio.Task[None]] = set()
        self.accepted = 0
        """Connections to other addresses than the box's loopback, ever."""
        self._loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self.accept)

    @property
    def crowded(self) -> bool:
        return len(self._serving) > CROWD

    def accept(self, at_most: int = AT_ONCE) -> int:
        """Take what waits in the queue; return how many there were."""
        for taken in range(at_most):
            try:
                box, _ = self._listener.accept()
            except BlockingIOError:
                return taken
            except OSError:
                continue  # it was reset while it waited: Linux gives those too, so this is another one's error
            box.setblocking(False)
            self._take(box)
        return at_most

    def _take(self, box: socket.socket) -> None:
        self._on_attempt()
        address, port = box.getsockname()[:2]
        self.accepted += not ip(address).is_loopback
        if port == DNS_PORT:
            self._serve(self._resolver.serve_tcp(box, address))
            return
        attempt = self.ledger.attempt("tcp", "ipv4" if ip(address).version == 4 else "ipv6", address, port)
        if len(self._serving) >= MOST_SERVED:
            self._turn_away(box, attempt)
            return
        self._serve(self._connection(Connection(self, box, attempt)))

    def _turn_away(self, box: socket.socket, attempt: Attempt) -> None:
        """Over capacity, or at the end: refused, whatever the policy says."""
        verdict = decide(self.ledger.policy, attempt, {}, self.ledger.usage())
        if verdict.allowed:
            verdict = self.ledger.failed()
        self.ledger.add(attempt, verdict, Traffic(ended="denied"), label=self.ledger.label)
        box.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        box.close()

    async def _connection(self, connection: Connection) -> None:
        self.ledger.open_connections += 1
        try:
            await connection.serve()
        finally:
            self.ledger.open_connections -= 1

    def _serve(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._serving.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the gateway of box %s failed at a connection, and closed it", self.ledger.box, exc_info=error)

    async def cut(self) -> None:
        """End every connection and record what still waits; afterwards all that was tried has been recorded.

        To be called when the box's programs are dead.  The listener goes on.
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
        self._loop.remove_reader(self._listener.fileno())
        await self.cut()
        self._listener.close()
