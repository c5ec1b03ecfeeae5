"""Watches the boxes of a worker: what they run and try goes to the detectors and into the log of sightings.

    episode ── turn ──► MonitoredSandbox ──► box            records ──► SandboxMonitor ──► log of sightings
                            │ commands                              │
                            └────────────────► Sentinel ◄───────────┘
                                                  │ finding
                  box frozen, alert on the episode ◄── SandboxMonitor ──► log of sightings

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

from engine.environments.contract import Sandboxes
from engine.rollout.alerted_turns import AlertedTurns
from engine.rollout.security_log import AlertSeen, RecordSeen, SecurityLog, label_of, place_of
from engine.spec.security import Place, Response, TurnText
from engine.spec.trajectory import ToolCall
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import Finding, Severity
from sandboxes.egress.detectors.judged_paths import PROTECTED, judges
from sandboxes.egress.detectors.kept_tests import NamedTests, is_compared, is_kept, is_kept_elsewhere, named_tests
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.suite import Suite
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord
from sandboxes.egress.sentinel import MOST_BOXES, Sentinel
from sandboxes.interface import ExecResult, Sandbox, SandboxLost
from sandboxes.tree import HOME, TreeLimits, TreeRefused

log = logging.getLogger(__name__)

RECORDS_PER_S = 500.0
"""Of one box, in the long run.  What is more waits in the box's ledger, which sums it up."""
RECORDS_AT_ONCE = 2000.0
COMPARED = TreeLimits(entries=64, size_bytes=256 * 1024)
"""Of a folder of tests."""
_RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}


class SandboxMonitor:
    """One per worker; belongs to one event loop.  ``on_record`` and ``on_action`` are for the pool of its boxes."""

    def __init__(self, response: Response, policy: EgressPolicy | None, sightings: SecurityLog) -> None:
        self._response = response
        self._policy = policy or EgressPolicy()
        self._sightings = sightings
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, tuple[Sandbox, EpisodeMonitor]] = {}
        self._freezing: set[asyncio.Task[None]] = set()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()
        self._numbers = itertools.count(1)
        self.turns = AlertedTurns(sightings)
        self._sentinel = Sentinel(self._suite, self._found)

    def episode(self, boxes: Sandboxes, trajectory: str) -> "EpisodeMonitor":
        """``boxes`` as this episode sees them."""
        return EpisodeMonitor(self, boxes, trajectory)

    def on_record(self, record: EgressRecord) -> bool:
        """Whether it was taken.  Raises OSError if it cannot be written; then the box keeps it."""
        box = record.attempt.box
        if not self._allowance(box).spend():
            return False
        self._sightings.write(RecordSeen(box=box, place=place_of(record.label), record=record))
        self._sentinel.feed(record)
        return True

    def on_action(self, action: ObservedAction) -> None:
        self._sentinel.feed(action)

    def ran(self, event: ExecEvent) -> None:
        self._sentinel.feed(event)

    @asynccontextmanager
    async def holding(self, box: Sandbox, watch: "EpisodeMonitor") -> AsyncIterator[None]:
        """While an episode has the box.  At the end all that it did has been looked at."""
        self.hold(box, watch)
        try:
            yield
        finally:
            box.label(None)  # what was tried so far is recorded now, as the episode's
            try:
                await self.settled(watch)
            finally:
                self._held = {name: held for name, held in self._held.items() if held[0] is not box}

    def hold(self, box: Sandbox, watch: "EpisodeMonitor") -> None:
        """Under its present name, of which a box has another one after each reset."""
        self._held[box.name] = (box, watch)

    async def settled(self, watch: "EpisodeMonitor | None" = None) -> None:
        """Everything told so far was looked at, and what is to be frozen is.

        What the processes of this episode's boxes did has been told by then; without ``watch``, those of all boxes.
        """
        await asyncio.gather(*(box.settled() for box, of in list(self._held.values()) if watch in (None, of)))
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
        self.turns.alerted(alert.place)
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


class EpisodeMonitor:
    """The boxes of one episode, and the alerts that quarantine it.  A ``Sandboxes``."""

    def __init__(self, monitor: SandboxMonitor, boxes: Sandboxes, trajectory: str) -> None:
        self._monitor, self._boxes, self._trajectory = monitor, boxes, trajectory
        self.turn = 0
        """Whose tool call runs next."""
        self.alerts: list[str] = []

    @property
    def place(self) -> Place:
        return Place(trajectory=self._trajectory, turn=self.turn)

    def begins(self, wrote: str, call: str) -> None:
        """The turn's tool call runs from now on."""
        self._monitor.turns.note(self.place, TurnText.cut(wrote=wrote, call=call))

    def ended(self, wrote: str, call: ToolCall) -> None:
        text = TurnText.cut(wrote=wrote, call=call.arguments, output=call.output, error_class=call.error_class)
        self._monitor.turns.note(self.place, text)

    def over(self) -> None:
        """The episode has ended, and so has everything it did."""
        self._monitor.turns.forget(self._trajectory)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Sandbox]:
        async with self._boxes.acquire() as box, self._monitor.holding(box, self):
            yield MonitoredSandbox(box, self._monitor, self)

    async def settled(self) -> None:
        """Whatever the episode did so far is judged: ``alerts`` is complete."""
        await self._monitor.settled(self)


class MonitoredSandbox:
    """A ``Sandbox`` that reports to the monitor what it is about to run; everything else goes straight to the box."""

    def __init__(self, box: Sandbox, monitor: SandboxMonitor, watch: EpisodeMonitor) -> None:
        self._box, self._monitor, self._watch = box, monitor, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._box, name)

    async def exec(
        self,
        argv: list[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        alone: bool = False,
    ) -> ExecResult:
        given = stdin.decode("utf-8", "replace")
        async with self._comparing("\n".join((*argv, given))) as compares:
            self._tell(argv=argv, stdin=given, compares=compares)
            return await self._box.exec(argv, stdin=stdin, env=env, timeout_s=timeout_s, alone=alone)

    async def run_python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        async with self._comparing(code) as compares:
            self._tell(code=code, compares=compares)
            return await self._box.run_python(code, timeout_s=timeout_s)

    @asynccontextmanager
    async def _comparing(self, text: str) -> AsyncIterator[frozenset[str]]:
        """Tests that the text names; afterwards what became of them is told: a renamed function is no tampering."""
        named = named_tests(text) if getattr(self._box, "observed", False) else NamedTests()
        before = await self._tests(named)
        yield frozenset(before)
        if not before:
            return
        await self._box.settled()  # what was done to them is judged before
        after = await self._tests(named)
        for path, content in before.items():
            now = after[path] if path in after else await self._shown(path)
            if now is None:
                kept = is_kept_elsewhere(content, after.values())
                self._tell(writes=path, found=True, gone=True, adds=kept)
            elif now != content:
                self._tell(writes=path, code=now, found=True, adds=is_kept(content, now, path=path))
        self._tell(compared=True)

    async def _shown(self, path: str) -> str | None:
        """What a test shows that was not among those read: emptied, closed, or hidden beside too much.  None: gone."""
        found, content = await self._content(path)
        return content.decode("utf-8", "replace") if found else None

    async def _tests(self, named: NamedTests) -> dict[str, str]:
        """What is in them; of folders that are too large, nothing."""
        held = {path: content for path in named.files if (content := (await self._content(path))[1])}
        for folder in named.folders:
            try:
                tree = await self._box.read_tree([folder], COMPARED)
            except (OSError, TreeRefused):
                continue
            held |= {f"{HOME}/{path}": content for path, content in tree.files.items() if is_compared(path)}
        return {path: content.decode("utf-8", "replace") for path, content in held.items()}

    async def write_file(self, path: str, content: bytes) -> None:
        before = await self._content(path) if judges(path) else None
        adds = before is not None and before[0] and _adds(path, before[1], content)
        found = None if before is None else before[0]
        self._tell(writes=path, code=content.decode("utf-8", "replace"), found=found, adds=adds)
        await self._box.write_file(path, content)

    async def _content(self, path: str) -> tuple[bool, bytes]:
        """Whether it is there, and what it holds, before it is written: a test that was there is somebody else's."""
        try:
            return True, await self._box.read_file(path)
        except OSError as error:
            return not isinstance(error, FileNotFoundError | NotADirectoryError), b""

    async def reset(self) -> None:
        await self._box.reset()
        self._monitor.hold(self._box, self._watch)

    def _tell(self, **what: Any) -> None:
        label = label_of(self._watch.place)
        self._box.label(label)
        observed = getattr(self._box, "observed", False)  # boxes of services and containers are not
        self._monitor.ran(ExecEvent(box=self._box.name, at=time.time(), label=label, observed=observed, **what))


def _adds(path: str, before: bytes, after: bytes) -> bool:
    """Whether every line that was there still is, or of a test all that it asked."""
    if is_compared(path) and is_kept(before.decode("utf-8", "replace"), after.decode("utf-8", "replace"), path=path):
        return True
    lines = {line.strip() for line in after.splitlines()}
    return bool(before.strip()) and all(line.strip() in lines for line in before.splitlines())


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
