"""The refused packets of one box: what the kernel logs, and what it could only count.

limits per second (rules.py) ─► logged: one record each
                             └► beyond: counted; asked for a moment later, one summed record
a full queue, of whichever socket ─► dropped, and counted by the kernel: one summed record as well
"""

import asyncio
import errno
import socket
import struct

from sandboxes.egress.attempt import Protocol
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.egress.interception import rules
from sandboxes.egress.interception.packets import Packet, logged
from sandboxes.egress.log import NO_TRAFFIC
from sandboxes.egress.verdict import decide

COUNT_S = 1.0
"""How long after a packet the counters are looked at."""
AT_ONCE = 256
SO_MEMINFO, MEMINFO_BYTES, DROPS_AT = 55, 36, 32
COUNTERS: dict[str, Protocol] = {rules.UNLOGGED_PACKETS: "other", rules.UNASKED_CONNECTIONS: "tcp"}


class Watch:
    """Reads the log of one box.  Belongs to one event loop."""

    def __init__(self, log: socket.socket, counters: socket.socket, questions: socket.socket, ledger: Ledger) -> None:
        """``questions``: the resolver's socket, whose drops are counted too."""
        self.ledger = ledger
        self._log = log
        self._counters = counters
        self._counted = dict.fromkeys(COUNTERS, 0)
        self._queues: dict[socket.socket, Protocol] = {log: "other", questions: "dns"}
        self._dropped = dict.fromkeys(self._queues, 0)
        self._unaccepted = 0
        self._later: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        log.setblocking(False)
        counters.settimeout(1.0)  # the kernel answers within the call
        self._loop.add_reader(log.fileno(), self.read)

    def read(self, at_most: int = AT_ONCE) -> int:
        """Record what the log has; return how many datagrams there were."""
        for taken in range(at_most):
            try:
                datagram = self._log.recv(65536)
            except BlockingIOError:
                return taken
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                continue  # packets are missing: ``count`` will know how many
            for packet in logged(datagram):
                self._seen(packet)
        return at_most

    def _seen(self, packet: Packet) -> None:
        attempt = self.ledger.attempt(packet.protocol, packet.family, packet.address, packet.port)
        verdict = decide(self.ledger.policy, attempt, {}, self.ledger.usage())
        if verdict.allowed:
            verdict = self.ledger.failed()  # it has been refused, whatever a rule says
        self.ledger.add(attempt, verdict, NO_TRAFFIC, label=self.ledger.label)
        self.expect_more()

    def expect_more(self) -> None:
        """Something was tried: look soon whether there was more than could be looked at."""
        if self._later is None:
            self._later = self._loop.call_later(COUNT_S, self._look_later)

    def _look_later(self) -> None:
        self._later = None
        if self.count():
            self.expect_more()

    def count(self) -> int:
        """Record what the kernel has counted since; return how much that is."""
        return self._refused() + self._lost()

    def _refused(self) -> int:
        """What the rules let nobody see, being too much."""
        new = 0
        for name, protocol in COUNTERS.items():
            total = self._packets(name)
            if fresh := total - self._counted[name]:
                self._counted[name] = total
                self.ledger.add_counted(protocol, fresh)
                new += fresh
        return new

    def _lost(self) -> int:
        """What found a full queue."""
        new = 0
        for queue, protocol in self._queues.items():
            if fresh := _drops(queue) - self._dropped[queue]:
                self._dropped[queue] += fresh
                self.ledger.add_counted(protocol, fresh)
                new += fresh
        return new

    def count_unaccepted(self, accepted: int) -> None:
        """Record the connections that were begun and never came, now that nobody is left to finish them.

        A guest may close a socket in the midst of its handshake.  What a full queue drops is tried again by
        the kernel and then counts twice: rather too many than too few.
        """
        begun = self._packets(rules.BEGUN_CONNECTIONS)
        if (fresh := begun - accepted - self._unaccepted) > 0:
            self._unaccepted += fresh
            self.ledger.add_counted("tcp", fresh)

    def _packets(self, counter: str) -> int:
        self._counters.send(rules.count_request(counter))
        return rules.counted(self._counters.recv(65536))

    async def cut(self) -> None:
        """Record everything that there is."""
        while self.read() == AT_ONCE:  # noqa: ASYNC110  the socket is asked, not waited for
            await asyncio.sleep(0)
        self.count()

    async def close(self) -> None:
        """After ``cut``: what the log has not told by now is of no box."""
        self._loop.remove_reader(self._log.fileno())
        if self._later is not None:
            self._later.cancel()
        self._log.close()
        self._counters.close()


def _drops(queue: socket.socket) -> int:
    """What the kernel did not put into the queue since it exists."""
    return int(struct.unpack_from("=I", queue.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, MEMINFO_BYTES), DROPS_AT)[0])
