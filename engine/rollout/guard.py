"""Watches the boxes of a worker: what they run and try goes to the detectors and into the log of sightings.

    episode ── turn ──► GuardedBox ──► box            records ──► Guard ──► log of sightings
                            │ commands                              │
                            └────────────────► Sentinel ◄───────────┘
                                                  │ finding
                  box frozen, alert on the episode ◄── Guard ──► log of sightings

An alarming box is frozen at once, by the worker that holds it.  Everything else (who is kept out of
training, for how long) is the loop's, which reads the sightings.
"""

import asyncio
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from engine.rollout.environments.interface import Boxes
from engine.rollout.sightings import AlertSeen, RecordSeen, SightingLog, label_of, place_of
from engine.spec.security import Place, Response
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import Finding, Severity
from sandboxes.egress.detectors.suite import Suite
from sandboxes.egress.detectors.tampering import PROTECTED
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord
from sandboxes.egress.sentinel import MOST_BOXES, Sentinel
from sandboxes.interface import ExecResult, Sandbox, SandboxLost

log = logging.getLogger(__name__)

RECORDS_PER_S = 500.0
"""Of one box, in the long run.  What is more waits in the box's ledger, which sums it up."""
RECORDS_AT_ONCE = 2000.0
_RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}


class Guard:
    """One per worker; belongs to one event loop.  ``on_record`` is for the pool that makes the boxes."""

    def __init__(self, response: Response, policy: EgressPolicy | None, sightings: SightingLog) -> None:
        self._response = response
        self._policy = policy or EgressPolicy()
        self._sightings = sightings
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, tuple[Sandbox, EpisodeWatch]] = {}
        self._freezing: set[asyncio.Task[None]] = set()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()
        self._numbers = itertools.count(1)
        self._sentinel = Sentinel(self._suite, self._found)

    def episode(self, boxes: Boxes, trajectory: str) -> "EpisodeWatch":
        """``boxes`` as this episode sees them."""
        return EpisodeWatch(self, boxes, trajectory)

    def on_record(self, record: EgressRecord) -> bool:
        """Whether it was taken.  Raises OSError if it cannot be written; then the box keeps it."""
        box = record.attempt.box
        if not self._allowance(box).spend():
            return False
        self._sightings.write(RecordSeen(box=box, place=place_of(record.label), record=record))
        self._sentinel.feed(record)
        return True

    def ran(self, event: ExecEvent) -> None:
        self._sentinel.feed(event)

    @asynccontextmanager
    async def holding(self, box: Sandbox, watch: "EpisodeWatch") -> AsyncIterator[None]:
        """While an episode has the box.  At the end all that it did has been looked at."""
        self.hold(box, watch)
        try:
            yield
        finally:
            box.label(None)  # what was tried so far is recorded now, as the episode's
            try:
                await self.settled()
            finally:
                self._held = {name: held for name, held in self._held.items() if held[0] is not box}

    def hold(self, box: Sandbox, watch: "EpisodeWatch") -> None:
        """Under its present name, of which a box has another one after each reset."""
        self._held[box.name] = (box, watch)

    async def settled(self) -> None:
        """Everything told so far was looked at, and what is to be frozen is."""
        await self._sentinel.settled()
        while self._freezing:
            await asyncio.wait(self._freezing)

    async def close(self) -> None:
        await self.settled()
        self._sentinel.close()
        self._sightings.close()

    def _suite(self) -> Suite:
        response = self._response
        return Suite(
            self._policy,
            without=frozenset(response.without),
            uploads=tuple(response.uploads),
            protected=(*PROTECTED, *response.protected),
        )

    def _found(self, finding: Finding) -> None:
        """In the sentinel's thread."""
        threshold = self._response.quarantine
        alarming = threshold != "never" and _RANK[finding.severity] >= _RANK[threshold]
        alert = AlertSeen(
            id=f"{finding.box}/{next(self._numbers)}",
            place=place_of(finding.label),
            finding=finding,
            quarantined=alarming,
        )
        if alarming:
            self._loop.call_soon_threadsafe(self._freeze, alert)
        self._sightings.write_or_owe(alert)

    def _allowance(self, box: str) -> "_Allowance":
        allowance = self._allowances.setdefault(box, _Allowance())
        self._allowances.move_to_end(box)
        if len(self._allowances) > MOST_BOXES:
            self._allowances.popitem(last=False)
        return allowance

    def _freeze(self, alert: AlertSeen) -> None:
        """In the event loop's thread.  A box that was given back already runs nothing any more."""
        box, watch = self._held.get(alert.finding.box, (None, None))
        if box is None or watch is None:
            return
        watch.alerts.append(alert.id)
        freezing = self._loop.create_task(_frozen(box, alert))
        self._freezing.add(freezing)
        freezing.add_done_callback(self._freezing.discard)


async def _frozen(box: Sandbox, alert: AlertSeen) -> None:
    try:
        await box.freeze(f"stopped by alert {alert.finding.rule}: {alert.finding.title}")
    except SandboxLost:
        log.warning("box %s was gone before it could be frozen for alert %s", alert.finding.box, alert.id)


class EpisodeWatch:
    """The boxes of one episode, and the alerts that quarantine it.  A ``Boxes``."""

    def __init__(self, guard: Guard, boxes: Boxes, trajectory: str) -> None:
        self._guard, self._boxes, self._trajectory = guard, boxes, trajectory
        self.turn = 0
        """Whose tool call runs next."""
        self.alerts: list[str] = []

    @property
    def place(self) -> Place:
        return Place(trajectory=self._trajectory, turn=self.turn)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Sandbox]:
        async with self._boxes.acquire() as box, self._guard.holding(box, self):
            yield GuardedBox(box, self._guard, self)  # type: ignore[misc]

    async def settled(self) -> None:
        """Whatever the episode did so far is judged: ``alerts`` is complete."""
        await self._guard.settled()


class GuardedBox:
    """A ``Sandbox`` that tells the guard what it is about to run; everything else goes straight to the box."""

    def __init__(self, box: Sandbox, guard: Guard, watch: EpisodeWatch) -> None:
        self._box, self._guard, self._watch = box, guard, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._box, name)

    async def exec(
        self,
        argv: list[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> ExecResult:
        self._tell(argv=argv, stdin=stdin.decode("utf-8", "replace"))
        return await self._box.exec(argv, stdin=stdin, env=env, timeout_s=timeout_s)

    async def run_python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        self._tell(code=code)
        return await self._box.run_python(code, timeout_s=timeout_s)

    async def write_file(self, path: str, content: bytes) -> None:
        self._tell(writes=path, code=content.decode("utf-8", "replace"))
        await self._box.write_file(path, content)

    async def reset(self) -> None:
        await self._box.reset()
        self._guard.hold(self._box, self._watch)

    def _tell(self, **what: Any) -> None:
        label = label_of(self._watch.place)
        self._box.label(label)
        self._guard.ran(ExecEvent(box=self._box.name, at=time.time(), label=label, **what))


class _Allowance:
    """A token bucket."""

    def __init__(self) -> None:
        self._left, self._at = RECORDS_AT_ONCE, time.monotonic()

    def spend(self) -> bool:
        now = time.monotonic()
        self._left = min(self._left + (now - self._at) * RECORDS_PER_S, RECORDS_AT_ONCE)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
