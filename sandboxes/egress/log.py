"""The records of one sandbox, kept until somebody has stored them.  Adding one never waits and never drops one.

At most ``limit`` records are kept whole and numbered.  While the reader is behind by that much, attempts
are summed up, first those that are equal, then, if those are too many kinds as well, those that share
protocol, decision and label, at last those that share protocol and reason; attempts at the sandbox's own
loopback are in no sum with others.  So memory is bounded whatever the sandbox does, and the sum of ``count``
over phase ``attempt`` is the number of attempts.  What is summed up is handed out when there is room again.
The reader's side is that of docs/events.md: it asks for what comes after a number, and acknowledges what it
has stored.
"""

import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from sandboxes.egress.address import is_loopback
from sandboxes.egress.connection_attempt import PROTOCOLS, ConnectionAttempt
from sandboxes.egress.decision import REASONS, EgressDecision
from sandboxes.egress.record import OPENING_BYTES, SPREAD_LIMIT, EgressRecord, Ended, Phase, Spread

KINDS_PER_LIMIT = 4
"""A log of ``limit`` records sums up to ``limit / 4`` kinds of each of the two finer sorts."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went over a connection since the record before about the same attempt."""

    bytes_up: int = 0
    bytes_down: int = 0
    packets_up: int = 0
    opening_up: bytes = b""
    opening_down: bytes = b""
    ended: Ended | None = None


NO_TRAFFIC = Traffic()


@dataclass(slots=True)
class _Sum:
    """Attempts of one kind that wait until they are handed out."""

    seq: int
    level: int
    phase: Phase
    first: ConnectionAttempt
    decision: EgressDecision
    label: str | None
    last_at: float
    traffic: Traffic = NO_TRAFFIC
    count: int = 0
    addresses: set[str | None] = field(default_factory=set)
    ports: set[int | None] = field(default_factory=set)
    names: set[str | None] = field(default_factory=set)

    def add(self, attempt: ConnectionAttempt, traffic: Traffic, at: float, count: int) -> None:
        self.count += count
        self.last_at = max(self.last_at, at)
        self.traffic = _added(self.traffic, traffic)
        if self.level > 0:
            seen = ((self.addresses, attempt.address), (self.ports, attempt.port), (self.names, attempt.name))
            for values, value in seen:
                if value is not None and len(values) < SPREAD_LIMIT:
                    values.add(value)  # type: ignore[arg-type]  # each set has its own type

    def record(self) -> EgressRecord:
        spread = Spread(addresses=len(self.addresses), ports=len(self.ports), names=len(self.names))
        return _record(
            self.seq, self.phase, self.first, self.decision, self.label, self.traffic,
            count=self.count, last_at=self.last_at, spread=spread if self.level else None,
        )  # fmt: skip


class RecordLog:
    """Append-only.  May be used from several threads; no call waits for a reader."""

    def __init__(self, limit: int = 4096, next_seq: int = 1) -> None:
        if limit < KINDS_PER_LIMIT:
            raise ValueError(f"limit = {limit}: a log keeps at least {KINDS_PER_LIMIT} records")
        self._limit = limit
        self._next_seq = next_seq
        self._attempts = 0
        self._numbered: deque[EgressRecord] = deque()
        self._sums: dict[Hashable, _Sum] = {}
        self._kinds = [0, 0, 0]
        self._lock = threading.Lock()

    @property
    def last_seq(self) -> int:
        """The highest number given so far; 0 before the first."""
        return self._next_seq - 1

    @property
    def attempts(self) -> int:
        """Return how many attempts were added: the sum of ``count`` once everything has been read."""
        return self._attempts

    @property
    def held(self) -> int:
        """Records and sums in memory; never more than ``bound``."""
        return len(self._numbered) + len(self._sums)

    @property
    def bound(self) -> int:
        """limit + the finer and the coarser sums + one for each protocol, reason and phase, loopback and not."""
        return self._limit + 2 * (self._limit // KINDS_PER_LIMIT) + 4 * len(PROTOCOLS) * len(REASONS)

    def add(
        self,
        attempt: ConnectionAttempt,
        decision: EgressDecision,
        *,
        label: str | None = None,
        traffic: Traffic = NO_TRAFFIC,
        count: int = 1,
    ) -> EgressRecord:
        """Record a decision, with the first bytes if known; ``count`` equal ones where they were only counted.

        Return what was added alone, with the number of the record that it is or will be a part of.
        """
        return self._add("attempt", attempt, decision, label, traffic, attempt.at, count)

    def add_traffic(
        self,
        attempt: ConnectionAttempt,
        decision: EgressDecision,
        traffic: Traffic,
        *,
        at: float,
        label: str | None = None,
    ) -> EgressRecord:
        """Record what an attempt that was let through has become, at ``at``.  Return it as ``add`` does."""
        return self._add("traffic", attempt, decision, label, traffic, at, 1)

    def batch(self, after: int, limit: int = 1000) -> list[EgressRecord]:
        """The records numbered beyond ``after``, oldest first.  Repeatable until they are acknowledged.

        Raises ``ValueError`` for a number whose successors were acknowledged already: they are gone.
        """
        with self._lock:
            self._give_numbers()
            first = self._numbered[0].seq if self._numbered else self._next_seq
            if after + 1 < first:
                raise ValueError(f"after = {after}: records before {first} were acknowledged and are no longer kept")
            start = after + 1 - first
            return [self._numbered[place] for place in range(start, min(start + limit, len(self._numbered)))]

    def acknowledge(self, through: int) -> None:
        """Forget what is stored elsewhere.  Twice is fine; a number not given yet is a ``ValueError``."""
        with self._lock:
            if through >= self._next_seq:
                raise ValueError(f"through = {through}: the last number is {self._next_seq - 1}")
            while self._numbered and self._numbered[0].seq <= through:
                self._numbered.popleft()
            self._give_numbers()

    def _add(
        self,
        phase: Phase,
        attempt: ConnectionAttempt,
        decision: EgressDecision,
        label: str | None,
        traffic: Traffic,
        at: float,
        count: int,
    ) -> EgressRecord:
        with self._lock:
            self._attempts += count if phase == "attempt" else 0
            has_room = len(self._numbered) < self._limit  # then no sum waits, for those are handed out first
            whole = None if has_room else self._sum_for(phase, attempt, decision, label, at)
            seq = self._next_seq if whole is None else whole.seq
            record = _record(seq, phase, attempt, decision, label, traffic, last_at=at, count=count)
            if whole is None:
                self._number(record)
            else:
                whole.add(attempt, traffic, at, count)
            return record

    def _sum_for(
        self, phase: Phase, attempt: ConnectionAttempt, decision: EgressDecision, label: str | None, at: float
    ) -> _Sum:
        destination = (attempt.protocol, attempt.address, attempt.port, attempt.name, attempt.sni, attempt.host)
        here = attempt.address is not None and is_loopback(attempt.address)
        finest: tuple[Hashable, ...] = (0, phase, *destination, attempt.query_type, attempt.method, decision, label)
        coarser: tuple[Hashable, ...] = (1, phase, attempt.protocol, here, decision, label)
        coarsest: tuple[Hashable, ...] = (2, phase, attempt.protocol, here, decision.reason)
        for level, key in enumerate((finest, coarser, coarsest)):
            if key in self._sums:
                return self._sums[key]
            if level == 2 or self._kinds[level] < self._limit // KINDS_PER_LIMIT:
                break
        kept = label if level < 2 else None
        seq = self._next_seq + len(self._sums)  # the sums before it are handed out first, and nothing else meanwhile
        self._sums[key] = _Sum(seq, level, phase, attempt, decision, kept, at)
        self._kinds[level] += 1
        return self._sums[key]

    def _give_numbers(self) -> None:
        while self._sums and len(self._numbered) < self._limit:
            oldest = self._sums.pop(next(iter(self._sums)))
            self._kinds[oldest.level] -= 1
            self._number(oldest.record())

    def _number(self, record: EgressRecord) -> None:
        self._numbered.append(record)
        self._next_seq += 1


def _record(
    seq: int,
    phase: Phase,
    attempt: ConnectionAttempt,
    decision: EgressDecision,
    label: str | None,
    traffic: Traffic,
    *,
    last_at: float,
    count: int = 1,
    spread: Spread | None = None,
) -> EgressRecord:
    return EgressRecord(
        seq=seq, phase=phase, attempt=attempt, decision=decision, label=label, count=count, last_at=last_at,
        spread=spread, bytes_up=traffic.bytes_up, bytes_down=traffic.bytes_down, packets_up=traffic.packets_up,
        opening_up=traffic.opening_up[:OPENING_BYTES], opening_down=traffic.opening_down[:OPENING_BYTES],
        ended=traffic.ended,
    )  # fmt: skip


def _added(one: Traffic, other: Traffic) -> Traffic:
    """The bytes of both; the first bytes are those of the first."""
    return Traffic(
        one.bytes_up + other.bytes_up,
        one.bytes_down + other.bytes_down,
        one.packets_up + other.packets_up,
        one.opening_up or other.opening_up,
        one.opening_down or other.opening_down,
        other.ended,
    )
