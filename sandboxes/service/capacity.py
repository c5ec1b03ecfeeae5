"""What the host can bear, who has it, and who is next.

A request that fits the host but not now waits.  Owners take turns, and so do the users of an owner, and
whoever was let in longest ago goes first.  The head of the queue is never overtaken: a large sandbox waits
until there is room for it, and everybody behind it waits as well.
"""

import asyncio
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.backends.namespaces.limits import bounds
from sandboxes.backends.remote.faults import Fault
from sandboxes.service.refusals import Busy, Unusable
from sandboxes.spec import SandboxSpec

SHARE = 0.8
"""Of the machine's memory, where no capacity is given."""
SANDBOXES = 1000
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def demand_mib(spec: SandboxSpec) -> int:
    """Return what a sandbox may fill: its processes' memory, its files, the copies of them that snapshots keep, and its
    own."""
    return bounds(spec).memory_bytes // 2**20


@dataclass(frozen=True, slots=True)
class Capacity:
    sandboxes: int = SANDBOXES
    memory_mib: int = 0

    @classmethod
    def detected(cls, sandboxes: int | None = None, memory_mib: int | None = None) -> "Capacity":
        """Return what was given, and for the rest what this machine or its container has."""
        return cls(sandboxes or SANDBOXES, memory_mib or int(SHARE * _memory_bytes() / 2**20))


def _memory_bytes() -> int:
    """Of the machine, or of the container that we are in, if that has less."""
    known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in map(Path, CGROUP_LIMITS):
        if path.exists() and (text := path.read_text().strip()).isdigit():
            known.append(int(text))
    return min(known)


@dataclass(eq=False)
class Ticket:
    """One sandbox that wants in."""

    owner: str
    user: str
    memory_mib: int
    admitted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Gate:
    """Lets sandboxes in, in turn, and never more than the capacity.  Belongs to one event loop."""

    def __init__(self, capacity: Capacity, most_waiting: int) -> None:
        self.capacity = capacity
        self.sandboxes = self.memory_mib = 0
        self._most_waiting = most_waiting
        self._waiting: list[Ticket] = []
        self._turns = itertools.count(1)
        self._last_turn: dict[str | tuple[str, str], int] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, owner: str, user: str, spec: SandboxSpec) -> Ticket:
        """Get in line.  Raises ``Unusable`` for a sandbox that this host can never bear, ``Busy`` if the line is too
        long.

        What was entered has to ``leave``, whether it was let in or not.
        """
        wanted = demand_mib(spec)
        if wanted > self.capacity.memory_mib:
            fault = Fault(
                field="spec.memory_mib", value=spec.memory_mib,
                message=f"with its files (disk_mib = {spec.disk_mib}) the sandbox may fill {wanted} MiB, and this host"
                f" gives sandboxes {self.capacity.memory_mib} MiB in all",
                remedy="lower memory_mib or disk_mib, or start the service with a larger --memory-mib",
            )  # fmt: skip
            raise Unusable("This host can never make such a sandbox", fault)
        if len(self._waiting) >= self._most_waiting:
            raise Busy(f"{self._most_waiting} sandboxes are waiting already: try again later", retry_after_s=5.0)
        ticket = Ticket(owner, user, wanted)
        self._waiting.append(ticket)
        self._let_in()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Make room; twice is fine."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        elif ticket.admitted.done() and not ticket.admitted.cancelled():
            self.sandboxes -= 1
            self.memory_mib -= ticket.memory_mib
            ticket.admitted = asyncio.get_running_loop().create_future()
            ticket.admitted.cancel()
        self._let_in()

    def position(self, ticket: Ticket) -> int | None:
        """1 is the next; None if it does not wait."""
        return self._order().index(ticket) + 1 if ticket in self._waiting else None

    def _let_in(self) -> None:
        for ticket in self._order():
            fits = self.memory_mib + ticket.memory_mib <= self.capacity.memory_mib
            if not fits or self.sandboxes >= self.capacity.sandboxes:
                return
            self._waiting.remove(ticket)
            self.sandboxes += 1
            self.memory_mib += ticket.memory_mib
            self._last_turn[ticket.owner] = self._last_turn[ticket.owner, ticket.user] = next(self._turns)
            ticket.admitted.set_result(None)

    def _order(self) -> list[Ticket]:
        by_owner: dict[str, dict[str, list[Ticket]]] = {}
        for ticket in self._waiting:
            by_owner.setdefault(ticket.owner, {}).setdefault(ticket.user, []).append(ticket)
        lines = []
        for owner in sorted(by_owner, key=lambda owner: self._last_turn.get(owner, 0)):
            users = by_owner[owner]
            turns = sorted(users, key=lambda user: self._last_turn.get((owner, user), 0))
            lines.append(_in_turn(users[user] for user in turns))
        return _in_turn(lines)


def _in_turn(lines: Iterable[list[Ticket]]) -> list[Ticket]:
    """The first of each line, then the second of each ..."""
    rounds = itertools.zip_longest(*lines)
    return [ticket for taken in rounds for ticket in taken if ticket is not None]
