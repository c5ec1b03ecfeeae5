"""What a host can bear, who has it, and who is next; the same for the hosts of an admin (``sandboxes.admin``).

A request that fits a host but not now waits.  Owners take turns, and so do the users of an owner, and
whoever was let in longest ago goes first.  The head of the queue is never overtaken: a large sandbox waits
until there is room for it, and everybody behind it waits as well.
"""

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from sandboxes.backends.namespaces.limits import bounds
from sandboxes.backends.remote.faults import Fault
from sandboxes.cgroups.memory import total_memory
from sandboxes.service.refusals import Busy, Unusable
from sandboxes.spec import SandboxSpec

SHARE = 0.8
"""The share of the machine's memory, where no capacity is given."""
SANDBOXES = 1000


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
        return cls(sandboxes or SANDBOXES, memory_mib or int(SHARE * total_memory() / 2**20))


@dataclass(eq=False)
class Room:
    """What one host can bear, and what was let in there."""

    name: str = "this host"
    capacity: Capacity | None = None
    """What it has for those who enter by this gate; None as long as nobody knows."""
    is_open: bool = True
    """Whether anybody new may enter."""
    failures: int = 0
    """Sandboxes in a row that could not be made there: such a host is chosen last."""
    sandboxes: int = 0
    memory_mib: int = 0

    def has_place(self, memory_mib: int) -> bool:
        return (
            self.is_open
            and self.capacity is not None
            and self.memory_mib + memory_mib <= self.capacity.memory_mib
            and self.sandboxes < self.capacity.sandboxes
        )

    def load_with(self, memory_mib: int) -> tuple[int, float, int]:
        """Order hosts that have a place: the least comes first."""
        assert self.capacity is not None
        return self.failures, (self.memory_mib + memory_mib) / self.capacity.memory_mib, self.sandboxes

    def add(self, ticket: "Ticket") -> None:
        self.sandboxes += 1
        self.memory_mib += ticket.memory_mib

    def remove(self, ticket: "Ticket") -> None:
        self.sandboxes -= 1
        self.memory_mib -= ticket.memory_mib


@dataclass(eq=False)
class Ticket:
    """One sandbox that wants in."""

    owner: str
    user: str
    memory_mib: int
    room: Room | None = None
    """Where it was let in."""
    admitted: asyncio.Future[Room] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Gate:
    """Lets sandboxes in, in turn, where the load is least, and never more than a room bears.

    Belongs to one event loop.  Who changes ``rooms``, or opens one, calls ``let_in``.
    """

    def __init__(self, capacity: Capacity | None, most_waiting: int) -> None:
        """``capacity``: of the only room; None for a gate whose rooms are added."""
        self.rooms = [] if capacity is None else [Room(capacity=capacity)]
        self._most_waiting = most_waiting
        self._waiting: list[Ticket] = []
        self._turns = itertools.count(1)
        self._last_turn: dict[str | tuple[str, str], int] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def capacity(self) -> Capacity:
        """The sum of all rooms together."""
        known = [room.capacity for room in self.rooms if room.capacity is not None]
        return Capacity(sum(capacity.sandboxes for capacity in known), sum(capacity.memory_mib for capacity in known))

    @property
    def sandboxes(self) -> int:
        return sum(room.sandboxes for room in self.rooms)

    @property
    def memory_mib(self) -> int:
        return sum(room.memory_mib for room in self.rooms)

    def enter(self, owner: str, user: str, spec: SandboxSpec) -> Ticket:
        """Get in line.  Raises ``Unusable`` for a sandbox that no room can ever bear, ``Busy`` if the line is too
        long.

        What was entered has to ``leave``, whether it was let in or not.  A ticket whose ``admitted`` was cancelled
        is passed over until it leaves.
        """
        self._refuse_impossible(spec)
        if len(self._waiting) >= self._most_waiting:
            raise Busy(f"{self._most_waiting} sandboxes are waiting already: try again later", retry_after_s=5.0)
        ticket = Ticket(owner, user, demand_mib(spec))
        self._waiting.append(ticket)
        self.let_in()
        return ticket

    def occupy(self, room: Room, owner: str, user: str, spec: SandboxSpec) -> Ticket:
        """Return the ticket of a sandbox that is in ``room`` already, whatever there is room for."""
        ticket = Ticket(owner, user, demand_mib(spec))
        self._admit(ticket, room)
        return ticket

    def wait_again(self, ticket: Ticket) -> None:
        """Take back what was let in: its room does not have it.  It is first in the line of its user."""
        assert ticket.room is not None
        ticket.room.remove(ticket)
        ticket.room, ticket.admitted = None, asyncio.get_running_loop().create_future()
        self._last_turn[ticket.owner] = self._last_turn[ticket.owner, ticket.user] = 0
        self._waiting.insert(0, ticket)
        self.let_in()

    def leave(self, ticket: Ticket) -> None:
        """Make room; twice is fine."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        elif ticket.room is not None:
            ticket.room.remove(ticket)
            ticket.room = None
        self.let_in()

    def position(self, ticket: Ticket) -> int | None:
        """1 is the next; None if it does not wait."""
        waits = ticket in self._waiting and not ticket.admitted.cancelled()
        return self._order().index(ticket) + 1 if waits else None

    def let_in(self) -> None:
        for ticket in self._order() if self._waiting else []:
            with_place = [room for room in self.rooms if room.has_place(ticket.memory_mib)]
            if not with_place:
                return
            self._waiting.remove(ticket)
            self._admit(ticket, min(with_place, key=lambda room: room.load_with(ticket.memory_mib)))

    def _admit(self, ticket: Ticket, room: Room) -> None:
        room.add(ticket)
        self._last_turn[ticket.owner] = self._last_turn[ticket.owner, ticket.user] = next(self._turns)
        ticket.room = room
        ticket.admitted.set_result(room)

    def _refuse_impossible(self, spec: SandboxSpec) -> None:
        wanted = demand_mib(spec)
        known = [room.capacity for room in self.rooms if room.capacity is not None]
        largest = max((capacity.memory_mib for capacity in known), default=0)
        if len(known) < len(self.rooms) or not known or wanted <= largest:
            return
        where = "this host gives" if len(known) == 1 else f"the largest of {len(known)} hosts gives"
        fault = Fault(
            field="spec.memory_mib", value=spec.memory_mib,
            message=f"with its files (disk_mib = {spec.disk_mib}) the sandbox may fill {wanted} MiB, and {where}"
            f" sandboxes {largest} MiB in all",
            remedy="lower memory_mib or disk_mib, or start the service with a larger --memory-mib",
        )  # fmt: skip
        raise Unusable("No host can ever make such a sandbox", fault)

    def _order(self) -> list[Ticket]:
        by_owner: dict[str, dict[str, list[Ticket]]] = {}
        for ticket in self._waiting:
            if not ticket.admitted.cancelled():
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
