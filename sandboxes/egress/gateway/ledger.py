"""What one sandbox has tried, used up, and been told: attempts get their numbers here and records their label.

Every attempt is added exactly once.  A record is delivered in the order of its number, either to the
callback, at once, or to whoever asks with ``batch``.  Whoever may not wait for that, whatever the callback takes, gets
each statement by itself.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from sandboxes.egress.address import is_loopback
from sandboxes.egress.connection_attempt import ConnectionAttempt, Family, Protocol
from sandboxes.egress.decision import EgressDecision, Reason, Usage, decide, failed_closed
from sandboxes.egress.log import NO_TRAFFIC, RecordLog, Traffic
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord
from sandboxes.egress.rule import FORWARDED

log = logging.getLogger(__name__)
OnRecord = Callable[[EgressRecord], bool | None]
"""False: not now, offer it again.  Whoever raises gets it again too."""
OnStatement = Callable[[EgressRecord], None]
"""Gets what each record is made of, once and at once: an attempt, or what has become of one.  It must not wait."""
MINUTE_S = 60.0
FLUSH_S = 60.0
"""At the end of a sandbox's user: then whoever should take the records is taken for dead, and that is told."""
AGAIN_S = 0.05
"""After which a record that was not taken is offered again."""


class Ledger:
    """The ledger of one user of one sandbox.  Belongs to one event loop."""

    def __init__(
        self,
        sandbox: str,
        policy: EgressPolicy,
        on_record: OnRecord | None = None,
        on_statement: OnStatement | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.policy = policy
        self.label: str | None = None
        self.records = RecordLog()
        self.on_record = on_record
        self._on_statement = on_statement
        self.open_connections = 0
        self.up_bytes = self.down_bytes = 0
        self._sequence = self._delivered = 0
        self._again: asyncio.TimerHandle | None = None
        self._allowed_at: deque[float] = deque()

    def attempt(
        self,
        protocol: Protocol,
        family: Family,
        address: str | None,
        port: int | None,
        **more: Any,
    ) -> ConnectionAttempt:
        self._sequence += 1
        return ConnectionAttempt(
            sandbox=self.sandbox, sequence=self._sequence, at=time.time(), protocol=protocol, family=family,
            address=address, port=port, **more,
        )  # fmt: skip

    def add(
        self,
        attempt: ConnectionAttempt,
        decision: EgressDecision,
        traffic: Traffic = NO_TRAFFIC,
        *,
        label: str | None,
        count: int = 1,
    ) -> None:
        """``count``: how many equal attempts this one stands for."""
        if decision.allowed:
            self._allowed_at.append(time.monotonic())
        self._sequence += count - 1
        self._added(self.records.add(attempt, decision, label=label, traffic=traffic, count=count))

    def add_traffic(
        self, attempt: ConnectionAttempt, decision: EgressDecision, traffic: Traffic, *, label: str | None
    ) -> None:
        self._added(self.records.add_traffic(attempt, decision, traffic, at=time.time(), label=label))

    def add_counted(
        self, protocol: Protocol, address: str | None, port: int | None, count: int, *, excess: bool, label: str | None
    ) -> None:
        """Add equal attempts that the kernel refused and counted: too many to look at (``excess``), or lost."""
        family: Family = "other" if address is None else "ipv6" if ":" in address else "ipv4"
        attempt = self.attempt(protocol, family, address, port)
        self._sequence += count - 1
        self._added(self.records.add(attempt, self._decision_on_counted(attempt, excess), label=label, count=count))

    def _decision_on_counted(self, attempt: ConnectionAttempt, excess: bool) -> EgressDecision:
        """Refused it was, whatever a rule says; of what is forwarded only the rate can be the reason."""
        if excess and (attempt.protocol == "dns" or (attempt.protocol == "tcp" and not _is_loopback(attempt))):
            return EgressDecision(allowed=False, policy=self.policy.name, reason="quota-rate")
        if attempt.protocol == "dns" or attempt.address is None:
            reason: Reason = "protocol-not-forwarded" if attempt.protocol not in FORWARDED else "gateway-failed"
            return EgressDecision(allowed=False, policy=self.policy.name, reason=reason)
        decision = decide(self.policy, attempt, {}, self.usage())
        return self.failed() if decision.allowed else decision

    def usage(self, connection_up_bytes: int = 0, connection_down_bytes: int = 0) -> Usage:
        horizon = time.monotonic() - MINUTE_S
        while self._allowed_at and self._allowed_at[0] < horizon:
            self._allowed_at.popleft()
        return Usage(
            connection_up_bytes, connection_down_bytes, self.up_bytes, self.down_bytes, self.open_connections,
            len(self._allowed_at),
        )  # fmt: skip

    def failed(self) -> EgressDecision:
        return failed_closed(self.policy)

    async def flush(self) -> None:
        """Return when everything was taken.  Nothing more may be tried: the sandbox's programs are dead."""
        deadline = time.monotonic() + FLUSH_S
        while self.on_record is not None and self.records.held:
            if time.monotonic() > deadline:
                log.error("sandbox %s: %d records were not taken for %g s", self.sandbox, self.records.held, FLUSH_S)
                return
            self._deliver()
            if self.records.held:
                await asyncio.sleep(AGAIN_S)

    def _added(self, statement: EgressRecord) -> None:
        if self._again is None:  # else nobody takes any at present
            self._deliver()
        if self._on_statement is not None:
            self._on_statement(statement)  # after its record: one that is taken is stored before anybody judges it

    def _deliver(self) -> None:
        if self.on_record is None:
            return
        for record in self.records.batch(self._delivered):
            if not self._taken(record):
                # It stays in the log: a full log sums up, and loses nothing.
                self._offer_again()
                return
            self._delivered = record.seq
            self.records.acknowledge(record.seq)

    def _taken(self, record: EgressRecord) -> bool:
        assert self.on_record is not None
        try:
            return self.on_record(record) is not False
        except Exception:
            log.exception("a record of sandbox %s could not be delivered", self.sandbox)
            return False

    def _offer_again(self) -> None:
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._after_a_while)

    def _after_a_while(self) -> None:
        self._again = None
        self._deliver()


def _is_loopback(attempt: ConnectionAttempt) -> bool:
    """A port of the sandbox's own where nobody listens: its attempts have a rate of their own."""
    return attempt.address is not None and is_loopback(attempt.address)
