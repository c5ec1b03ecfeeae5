"""What one box has tried, used up, and been told: attempts get their numbers here and records their label.

Every attempt is added exactly once.  A record is delivered in the order of its number, either to the
callback, at once, or to whoever asks with ``batch``.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from sandboxes.egress.attempt import Attempt, Family, Protocol
from sandboxes.egress.log import NO_TRAFFIC, RecordLog, Traffic
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord
from sandboxes.egress.verdict import Reason, Usage, Verdict, failed_closed

log = logging.getLogger(__name__)
OnRecord = Callable[[EgressRecord], None]
MINUTE_S = 60.0


class CountedLog(RecordLog):
    """A log that also takes attempts which the kernel could only count."""

    def add_counted(self, attempt: Attempt, verdict: Verdict, count: int, *, label: str | None) -> None:
        """``count`` attempts of which nothing more is known than ``attempt`` says."""
        with self._lock:
            self._attempts += count
            total = self._sum_for("attempt", attempt, verdict, label, attempt.at)
            total.last_at = max(total.last_at, attempt.at)
            total.count += count
            self._give_numbers()


class Ledger:
    """Of one user of one box.  Belongs to one event loop."""

    def __init__(self, box: str, policy: EgressPolicy, on_record: OnRecord | None = None) -> None:
        self.box = box
        self.policy = policy
        self.label: str | None = None
        self.records = CountedLog()
        self.on_record = on_record
        self.open_connections = 0
        self.up_bytes = self.down_bytes = 0
        self._sequence = self._delivered = 0
        self._allowed_at: deque[float] = deque()

    def attempt(
        self,
        protocol: Protocol,
        family: Family,
        address: str | None,
        port: int | None,
        **more: Any,
    ) -> Attempt:
        self._sequence += 1
        return Attempt(
            box=self.box, sequence=self._sequence, at=time.time(), protocol=protocol, family=family,
            address=address, port=port, **more,
        )  # fmt: skip

    def add(self, attempt: Attempt, verdict: Verdict, traffic: Traffic = NO_TRAFFIC, *, label: str | None) -> None:
        if verdict.allowed:
            self._allowed_at.append(time.monotonic())
        self.records.add(attempt, verdict, label=label, traffic=traffic)
        self._deliver()

    def add_traffic(self, attempt: Attempt, verdict: Verdict, traffic: Traffic, *, label: str | None) -> None:
        self.records.add_traffic(attempt, verdict, traffic, at=time.time(), label=label)
        self._deliver()

    def add_counted(self, protocol: Protocol, count: int) -> None:
        """Attempts that the kernel refused and counted, because there were too many to look at."""
        attempt = self.attempt(protocol, "other", None, None)
        self._sequence += count - 1
        reason: Reason = "quota-rate" if protocol == "tcp" else "protocol-not-forwarded"
        verdict = Verdict(allowed=False, policy=self.policy.name, reason=reason)
        self.records.add_counted(attempt, verdict, count, label=self.label)
        self._deliver()

    def usage(self, connection_up_bytes: int = 0, connection_down_bytes: int = 0) -> Usage:
        horizon = time.monotonic() - MINUTE_S
        while self._allowed_at and self._allowed_at[0] < horizon:
            self._allowed_at.popleft()
        return Usage(
            connection_up_bytes, connection_down_bytes, self.up_bytes, self.down_bytes, self.open_connections,
            len(self._allowed_at),
        )  # fmt: skip

    def failed(self) -> Verdict:
        return failed_closed(self.policy)

    def _deliver(self) -> None:
        if self.on_record is None:
            return
        for record in self.records.batch(self._delivered):
            try:
                self.on_record(record)
            except Exception:
                # It stays in the log, and is delivered with the next one: a full log sums up, and loses nothing.
                log.exception("a record of box %s could not be delivered", self.box)
                return
            self._delivered = record.seq
            self.records.acknowledge(record.seq)
