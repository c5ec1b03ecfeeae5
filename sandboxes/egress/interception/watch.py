"""The refused packets of one sandbox: what the kernel logs, and what it could only count.

limits per second (rules.py) ─► logged: one record each
                             └► beyond: counted by destination; asked for a moment later, one summed record each
a full queue, of whichever socket ─► what the kernel passed on and never arrived: a summed record as well
"""

import asyncio
import errno
import ipaddress
import socket
from collections import OrderedDict

from sandboxes.egress.connection_attempt import Protocol
from sandboxes.egress.decision import decide
from sandboxes.egress.gateway.ledger import Ledger
from sandboxes.egress.gateway.pace import PacedReader
from sandboxes.egress.interception.packets import Packet, logged
from sandboxes.egress.interception.rules import Destination, Kind
from sandboxes.egress.interception.tally import Counted, Kernel, Tally
from sandboxes.egress.log import NO_TRAFFIC

COUNT_S, SOON_S = 1.0, 0.1
"""How long after an attempt the counters are looked at; and while there are many destinations."""
AT_ONCE = 256
REPORTED_AT_ONCE, REPORT_S = 8, 0.004
"""Summed records in one go, and the rest after them."""
MOST_UNREPORTED = 32768
"""Destinations that wait for their record; beyond it they share one per kind."""
LOOKS = 5
"""At the end the sets are read again until they are whole: one that grows is told in part."""
Held = tuple[str | None, Kind, Destination | None, bool]


class Watch:
    """Reads the log and the counters of one sandbox.  Belongs to one event loop."""

    def __init__(self, log: socket.socket, counters: socket.socket, ledger: Ledger) -> None:
        self.ledger = ledger
        self._log = log
        self._kernel = Kernel(counters)
        self._tally = Tally()
        self._forgotten_at: dict[str, int] = {}
        """The kernel's sums when its sets were last emptied."""
        self._unreported: OrderedDict[Held, int] = OrderedDict()
        self._later: asyncio.TimerHandle | None = None
        self._reporting: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        log.setblocking(False)
        self._reader = PacedReader(log.fileno(), self.read)

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
                continue  # packets are missing: the tally knows which
            for packet in logged(datagram):
                self._seen(packet)
        return at_most

    def _seen(self, packet: Packet) -> None:
        self.arrived("packets", packet.protocol, packet.address, packet.port or 0)
        attempt = self.ledger.attempt(packet.protocol, packet.family, packet.address, packet.port)
        decision = decide(self.ledger.policy, attempt, {}, self.ledger.usage())
        if decision.allowed:
            decision = self.ledger.failed()  # it has been refused, whatever a rule says
        self.ledger.add(attempt, decision, NO_TRAFFIC, label=self.ledger.label)

    # -- what the kernel counted -------------------------------------------------------------------

    def arrived(self, kind: Kind, protocol: Protocol, address: str | None, port: int) -> None:
        """Something that the kernel passed on is about to be recorded: look soon whether there was more."""
        self._tally.arrive(Destination(kind, protocol, _packed(address), port))
        self.expect_more(COUNT_S)

    def expect_more(self, within_s: float) -> None:
        if self._later is None:
            self._later = self._loop.call_later(within_s, self._look)

    def _look(self) -> None:
        self._later = None
        found = self.count()
        if found:
            self.expect_more(SOON_S if found > AT_ONCE or self._tally.many else COUNT_S)

    def count(self) -> int:
        """Take down what was refused beyond the rates since, under the present label; return how many kinds."""
        return self._take_excess(self._kernel.totals())

    def _take_excess(self, totals: dict[str, int], *, is_last: bool = False) -> int:
        if not self._tally.has_excess(totals) and not self._tally.many:
            return 0
        seen = self._kernel.destinations()
        found = self._tally.excess(totals, seen, self.ledger.label, is_last=is_last)
        self._hold(found)
        if self._tally.many:
            settled = self._tally.settled(seen)
            self._kernel.forget(settled)
            self._tally.forget(settled)
        return len(found)

    def turn(self) -> None:
        """The label is about to change: what was tried until now belongs to the present one."""
        totals = self._kernel.totals()
        self._take_excess(totals)
        if self._tally.has_passing(totals):
            self._tally.passing(self._kernel.destinations(), self.ledger.label)

    def settle(self) -> None:
        """Take down everything that has not arrived.  The sandbox's programs are dead and every queue is empty."""
        totals = self._kernel.totals()
        for look in range(LOOKS):
            if not self._tally.has_excess(totals):
                break
            self._take_excess(totals, is_last=look == LOOKS - 1)
        if self._tally.has_passing(totals):
            self._tally.passing(self._kernel.destinations(), self.ledger.label)
            self._hold(self._tally.lost(totals, self.ledger.label))

    # -- summed records ----------------------------------------------------------------------------

    def _hold(self, found: list[Counted]) -> None:
        for counted in found:
            key = (counted.label, counted.kind, counted.destination, counted.excess)
            if key not in self._unreported and len(self._unreported) >= MOST_UNREPORTED:
                key = (counted.label, counted.kind, None, counted.excess)
            self._unreported[key] = self._unreported.get(key, 0) + counted.count
        if self._unreported and self._reporting is None:
            self._reporting = self._loop.call_later(0, self._report)

    def _report(self) -> None:
        self._reporting = None
        self.report(REPORTED_AT_ONCE)
        if self._unreported:
            self._reporting = self._loop.call_later(REPORT_S, self._report)

    def report(self, at_most: int = AT_ONCE) -> int:
        """Record what was taken down; return how many summed records that gave."""
        for all_reported in range(at_most):
            if not self._unreported:
                return all_reported
            (label, kind, destination, excess), count = self._unreported.popitem(last=False)
            self._add(label, kind, destination, excess, count)
        return at_most

    def _add(self, label: str | None, kind: Kind, destination: Destination | None, excess: bool, count: int) -> None:
        protocol = _protocol(kind, destination)
        if destination is None:
            self.ledger.add_counted(protocol, None, None, count, excess=excess, label=label)
        else:
            port = destination.port if protocol in ("tcp", "udp", "dns") else None
            address = str(ipaddress.ip_address(destination.address))
            self.ledger.add_counted(protocol, address, port, count, excess=excess, label=label)

    async def cut(self) -> None:
        """Record everything that the log has."""
        while self.read() == AT_ONCE:  # noqa: ASYNC110  the socket is asked, not waited for
            await asyncio.sleep(0)

    async def all_reported(self) -> None:
        """Return when everything that was taken down has its record."""
        while self.report(REPORTED_AT_ONCE):  # noqa: ASYNC110  others get their turn meanwhile
            await asyncio.sleep(0)

    def renew(self, ledger: Ledger) -> None:
        """For the next user.  After ``settle`` and ``told``."""
        totals = self._kernel.totals()
        if totals != self._forgotten_at:
            self._kernel.forget(self._kernel.destinations())
            self._forgotten_at = totals
        self._tally = self._tally.renewed()
        self.ledger = ledger

    async def close(self) -> None:
        """After ``settle`` and ``told``: what the log has not told by now is of no sandbox."""
        self._reader.close()
        for timer in (self._later, self._reporting):
            if timer is not None:
                timer.cancel()
        self._log.close()
        self._kernel.close()


def _packed(address: str | None) -> bytes:
    if address is None:
        return b""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).packed


def _protocol(kind: Kind, destination: Destination | None) -> Protocol:
    if kind == "questions":
        return "dns"
    if destination is not None:
        return destination.protocol
    return "tcp" if kind == "connections" else "other"
