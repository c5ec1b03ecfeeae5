"""What the kernel has counted of one sandbox, by destination, set against what has arrived here.

    passed on by the kernel  =  arrived (a record each)  +  lost on the way      told when nothing can arrive any more
    beyond the rate          =  told so far              +  new since            told at each look
    in no set, being full    =  the kernel's sum         -  all of the above     told without a destination

``Kernel`` asks; ``Tally`` subtracts, and knows no socket.
"""

import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sandboxes.egress.interception import netlink, nftables, rules
from sandboxes.egress.interception.rules import KINDS, Destination, Kind, counter_name

ANSWER_BYTES = 2**17
ELEMENTS_AT_ONCE = 1000
"""In one message: the length of an attribute has 16 bits."""
MANY = rules.MOST_TRIED // 4
"""With so many destinations those that are settled are forgotten, here and in the kernel."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Attempts that nobody has looked at."""

    kind: Kind
    destination: Destination | None
    """None where the kernel's set was full."""
    count: int
    label: str | None
    excess: bool


class Kernel:
    """Our side of the netlink socket in a sandbox's network."""

    def __init__(self, asked: socket.socket) -> None:
        asked.settimeout(1.0)  # the kernel answers within the call
        self._asked = asked

    def totals(self) -> dict[str, int]:
        """Packets by the name of their counter."""
        return nftables.counted(self._answer(nftables.counters_request(), netlink.DONE))

    def destinations(self) -> dict[Destination, int]:
        """Packets by destination.  A set that grows meanwhile may be told in part: ``settle`` asks again."""
        found: dict[Destination, int] = {}
        for name in rules.SETS:
            answer = self._answer(nftables.elements_request(name), netlink.DONE)
            for key, count in nftables.elements(answer):
                destination = rules.destination(key)
                # Protocols without a name of their own are one.
                found[destination] = found.get(destination, 0) + count
        return found

    def forget(self, destinations: Iterable[Destination]) -> None:
        """Take these out of the sets.  What is counted meanwhile is in the totals only."""
        wanted = set(destinations)
        for name in rules.SETS:
            answer = self._answer(nftables.elements_request(name), netlink.DONE)
            keys = list(dict.fromkeys(key for key, _ in nftables.elements(answer) if rules.destination(key) in wanted))
            for start in range(0, len(keys), ELEMENTS_AT_ONCE):
                self._answer(nftables.forget(name, keys[start : start + ELEMENTS_AT_ONCE]), netlink.ERROR)

    def _answer(self, request: bytes, last: int) -> bytes:
        """All datagrams up to the message that ends the answer.  Raises ``OSError``."""
        self._asked.send(request)
        parts = []
        while True:
            parts.append(self._asked.recv(ANSWER_BYTES))
            for kind, _, body in netlink.messages(parts[-1]):
                if kind == netlink.ERROR:
                    netlink.raise_for(body)
                if kind == last:
                    return b"".join(parts)

    def close(self) -> None:
        self._asked.close()


@dataclass
class Tally:
    """The tally of one user of one sandbox."""

    arrived: Counter[Destination] = field(default_factory=Counter)
    _sums: Counter[str] = field(default_factory=Counter)
    """What has arrived or was told, by the name of the kernel's counter, ever."""
    _reported: Counter[Destination] = field(default_factory=Counter)
    """Excess that was told, of what the kernel's sets still hold."""
    _waiting: Counter[Destination] = field(default_factory=Counter)
    _by_label: list[tuple[str | None, Counter[Destination]]] = field(default_factory=list)
    """By how much each label has changed what was passed on and has not arrived."""

    def arrive(self, destination: Destination) -> None:
        self.arrived[destination] += 1
        self._sums[destination.kind] += 1

    def has_excess(self, totals: Mapping[str, int]) -> bool:
        return any(totals[name] > self._sums[name] for name in (counter_name(kind, True) for kind in KINDS))

    def has_passing(self, totals: Mapping[str, int]) -> bool:
        return bool(self._waiting) or any(totals[kind] != self._sums[kind] for kind in KINDS)

    def excess(
        self, totals: Mapping[str, int], seen: Mapping[Destination, int], label: str | None, *, is_last: bool
    ) -> list[Counted]:
        """Return what was refused since.  ``totals`` is older than ``seen``; ``all_told``: ``seen`` is surely whole."""
        found = []
        for destination, count in seen.items():
            if destination.excess and (fresh := count - self._reported[destination]) > 0:
                self._reported[destination] = count
                self._sums[counter_name(destination.kind, True)] += fresh
                found.append(Counted(destination.kind, destination, fresh, label, True))
        if is_last or len(seen) >= rules.MOST_TRIED:
            found += self._rest(totals, label, excess=True)
        return found

    def passing(self, seen: Mapping[Destination, int], label: str | None) -> None:
        """Remember under which label it was tried what is still on its way."""
        waiting = Counter(
            {
                destination: open_
                for destination in {*self.arrived, *(counted for counted in seen if not counted.excess)}
                if (open_ := seen.get(destination, 0) - self.arrived[destination])
            }
        )
        change = Counter(waiting)
        change.subtract(self._waiting)
        self._waiting = waiting
        if any(change.values()):
            self._by_label.append((label, change))

    def lost(self, totals: Mapping[str, int], label: str | None) -> list[Counted]:
        """Return what was passed on and never came, now that nothing can come any more.  After ``passing``."""
        found = [
            Counted(destination.kind, destination, count, when, False)
            for destination, open_ in self._waiting.items()
            if open_ > 0
            for when, count in self._labels_of(destination)
        ]
        for counted in found:
            self._sums[counted.kind] += counted.count
        return found + self._rest(totals, label, excess=False)

    def _labels_of(self, destination: Destination) -> list[tuple[str | None, int]]:
        """First come, first served: what arrived under a later label is the oldest that was open."""
        open_: list[tuple[str | None, int]] = []
        for label, change in self._by_label:
            count = change[destination]
            while count < 0 and open_:
                when, earlier = open_.pop(0)
                if earlier + count > 0:
                    open_.insert(0, (when, earlier + count))
                count = min(0, earlier + count)
            if count > 0:
                open_.append((label, count))
        return open_

    def _rest(self, totals: Mapping[str, int], label: str | None, *, excess: bool) -> list[Counted]:
        found = []
        for kind in KINDS:
            name = counter_name(kind, excess)
            if (missing := totals[name] - self._sums[name]) > 0:
                self._sums[name] += missing
                found.append(Counted(kind, None, missing, label, excess))
        return found

    @property
    def many(self) -> bool:
        return len(self.arrived) + len(self._reported) > MANY

    def settled(self, seen: Mapping[Destination, int]) -> list[Destination]:
        """Return what can be forgotten: everything that the kernel has counted of it is recorded."""
        known = {True: self._reported, False: self.arrived}
        return [destination for destination, count in seen.items() if known[destination.excess][destination] == count]

    def forget(self, destinations: Iterable[Destination]) -> None:
        for destination in destinations:
            self.arrived.pop(destination, None)
            self._reported.pop(destination, None)

    def renewed(self) -> "Tally":
        """For the next user, with the kernel's sets empty; its sums go on."""
        return Tally(_sums=self._sums)
