"""Watches the sandboxes of a worker: what they run and try goes to the detectors and into the security log.

    episode ── turn ──► MonitoredSandbox ──► sandbox ──── records ───► SandboxMonitor ──► security log
                            │ commands          │ attempts, actions, one by one
                            └────────────────► Sentinel
                                                  │ finding
                  sandbox frozen, alert on the episode ◄── SandboxMonitor ──► security log

An alarming sandbox is frozen at once, by the worker that holds it.  Everything else (who is kept out of
training, for how long) is the loop's, which reads the security log.
"""

import asyncio
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from engine.environments.contract import Sandboxes, SandboxesOfSpecs
from engine.rollout.alerted_turns import AlertedTurns
from engine.rollout.compared_tests import ComparedTests, lines_kept
from engine.rollout.security_log import AlertEntry, RecordEntry, SecurityLog, label_of, origin_of
from engine.spec.security import Origin, Response, TurnText
from engine.spec.trajectory import ToolCall
from sandboxes.egress.connection_attempt import printable
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import EVIDENCE_CHARACTERS, EVIDENCE_LINES, Finding, RuleInfo, Severity
from sandboxes.egress.detectors.judged_paths import PROTECTED, judges
from sandboxes.egress.detectors.kept_questions import Kept
from sandboxes.egress.detectors.kept_tests import may_change_files
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.suite import Suite
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord
from sandboxes.egress.sentinel import MOST_SANDBOXES, Sentinel
from sandboxes.interface import ExecResult, Sandbox, SandboxLost, SandboxUnavailable
from sandboxes.spec import SandboxSpec

log = logging.getLogger(__name__)

RECORDS_PER_S = 500.0
"""The records of one sandbox, in the long run.  What is more waits in the sandbox's ledger, which sums it up."""
RECORDS_AT_ONCE = 2000.0
_RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}


class SandboxMonitor:
    """One per worker; belongs to one event loop.  ``on_record``, ``on_statement`` and ``on_action`` are for the pool of
    its sandboxes.

    ``on_alert`` is told every alert, in that loop.
    """

    def __init__(
        self,
        response: Response,
        policy: EgressPolicy | None,
        security_log: SecurityLog,
        *,
        on_alert: Callable[[AlertEntry], None] | None = None,
    ) -> None:
        self._response = response
        self._policy = policy or EgressPolicy()
        self.without = frozenset(response.without)
        """Ids of rules that the environment does not want."""
        self._security_log = security_log
        self._on_alert = on_alert
        self._loop = asyncio.get_running_loop()
        self._held: dict[str, tuple[Sandbox, EpisodeMonitor]] = {}
        self._changed: set[str] = set()
        """Sandboxes in which a file was changed, of those that are held."""
        self._freezing: set[asyncio.Task[None]] = set()
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()
        self._numbers = itertools.count(1)
        self.turns = AlertedTurns(security_log)
        self._sentinel = Sentinel(self._suite, self.found)

    def episode(self, sandboxes: Sandboxes, trajectory: str) -> "EpisodeMonitor":
        """``sandboxes`` as this episode sees them."""
        return EpisodeMonitor(self, sandboxes, trajectory)

    def on_record(self, record: EgressRecord) -> bool:
        """Return whether it was taken.  Raises OSError if it cannot be written; then the sandbox keeps it."""
        sandbox = record.attempt.sandbox
        if not self._allowance(sandbox).spend():
            return False
        self._security_log.write(RecordEntry(sandbox=sandbox, origin=origin_of(record.label), record=record))
        return True

    def on_statement(self, statement: EgressRecord) -> None:
        """What the log takes only by and by, or as a sum, is judged at once and for itself: no flood hides a deed."""
        self._sentinel.feed(statement)

    def on_action(self, action: ObservedAction) -> None:
        if action.kind == "file" and action.operation != "read" and action.sandbox in self._held:
            self._changed.add(action.sandbox)
        self._sentinel.feed(action)

    def unchanged(self, sandbox: str) -> None:
        """Forget which files of the sandbox were changed."""
        self._changed.discard(sandbox)

    def has_changed(self, sandbox: str) -> bool:
        """Return whether a file was changed in it since ``unchanged``, as far as that has been told."""
        return sandbox in self._changed

    def ran(self, event: ExecEvent) -> None:
        self._sentinel.feed(event)

    @asynccontextmanager
    async def holding(
        self, sandbox: Sandbox, watch: "EpisodeMonitor", policy: EgressPolicy | None = None
    ) -> AsyncIterator[None]:
        """While an episode has the sandbox.  At the end all that it did has been looked at."""
        self.hold(sandbox, watch, policy)
        try:
            yield
        finally:
            sandbox.label(None)  # what was tried so far is recorded now, as the episode's
            try:
                await self.settled(watch)
            finally:
                for name in [name for name, held in watch.held.items() if held is sandbox]:
                    del self._held[name], watch.held[name]
                    self._changed.discard(name)

    def hold(self, sandbox: Sandbox, watch: "EpisodeMonitor", policy: EgressPolicy | None = None) -> None:
        """Under its present name, of which a sandbox has another one after each reset.

        ``policy``: what it may reach, where that is not what the pool's own spec says.
        """
        self._held[sandbox.name] = (sandbox, watch)
        watch.held[sandbox.name] = sandbox
        if policy is not None:
            self._sentinel.govern(sandbox.name, policy)

    async def settled(self, watch: "EpisodeMonitor | None" = None) -> None:
        """Everything told so far was looked at, and what is to be frozen is.

        What the processes of this episode's sandboxes did has been told by then; without ``watch``, those of all
        sandboxes.
        """
        held = list(watch.held.values()) if watch else [sandbox for sandbox, _ in self._held.values()]
        if len(held) == 1:
            await held[0].settled()  # an episode's one sandbox needs no task of its own
        else:
            await asyncio.gather(*(sandbox.settled() for sandbox in held))
        await self._sentinel.settled()
        while self._freezing:
            await asyncio.wait(self._freezing)

    async def close(self) -> None:
        await self.settled()
        self._sentinel.close()
        self._security_log.close()

    def _suite(self) -> Suite:
        response = self._response
        return Suite(
            self._policy,
            without=self.without,
            uploads=tuple(response.uploads),
            protected=(*PROTECTED, *response.protected),
        )

    def found(self, finding: Finding) -> None:
        """Take a finding; any thread may call it, the detectors' does."""
        threshold = self._response.quarantine
        alarming = threshold != "never" and _RANK[finding.severity] >= _RANK[threshold]
        alert = AlertEntry(
            id=f"{finding.sandbox}/{next(self._numbers)}",
            origin=origin_of(finding.label),
            finding=finding,
            quarantined=alarming,
        )
        if self._on_alert is not None:
            self._loop.call_soon_threadsafe(self._on_alert, alert)
        if alarming:
            self._loop.call_soon_threadsafe(self._freeze, alert)
        self.turns.alerted(alert.origin)
        self._security_log.write_or_owe(alert)

    def _allowance(self, sandbox: str) -> "_Allowance":
        allowance = self._allowances.setdefault(sandbox, _Allowance())
        self._allowances.move_to_end(sandbox)
        if len(self._allowances) > MOST_SANDBOXES:
            self._allowances.popitem(last=False)
        return allowance

    def _freeze(self, alert: AlertEntry) -> None:
        """Freeze the sandbox; runs in the event loop's thread.  A sandbox that was given back already runs nothing any
        more."""
        sandbox, watch = self._held.get(alert.finding.sandbox, (None, None))
        if sandbox is None or watch is None:
            return
        watch.alerts.append(alert.id)
        freezing = self._loop.create_task(_frozen(sandbox, alert))
        self._freezing.add(freezing)
        freezing.add_done_callback(self._freezing.discard)


async def _frozen(sandbox: Sandbox, alert: AlertEntry) -> None:
    try:
        await sandbox.freeze(f"stopped by alert {alert.finding.rule}: {alert.finding.title}")
    except SandboxLost:
        log.warning("sandbox %s was gone before it could be frozen for alert %s", alert.finding.sandbox, alert.id)


class EpisodeMonitor:
    """The sandboxes of one episode, and the alerts that quarantine it.  A ``Sandboxes``."""

    def __init__(self, monitor: SandboxMonitor, sandboxes: Sandboxes, trajectory: str) -> None:
        self._monitor, self._sandboxes, self._trajectory = monitor, sandboxes, trajectory
        self.turn = 0
        """The tool call of this turn runs next."""
        self.alerts: list[str] = []
        self.held: dict[str, Sandbox] = {}
        """Those that it has now, by the names that they have had in its time."""
        self.alarmed = False
        """Whether the environment itself found something; ``settled`` is then needed once more after its score."""

    @property
    def origin(self) -> Origin:
        return Origin(trajectory=self._trajectory, turn=self.turn)

    def begins(self, wrote: str, call: str) -> None:
        """The turn's tool calls run from now on."""
        self._monitor.turns.note(self.origin, TurnText.cut(wrote=wrote, call=call))

    def ended(self, wrote: str, calls: Sequence[ToolCall]) -> None:
        """The turn's calls are over; of several the texts stand below one another."""
        text = TurnText.cut(
            wrote=wrote,
            call="\n".join(call.text for call in calls),
            output="\n".join(call.output for call in calls),
            error_class=next((call.error_class for call in calls if call.error_class is not None), None),
        )
        self._monitor.turns.note(self.origin, text)

    def over(self) -> None:
        """The episode has ended, and so has everything it did."""
        self._monitor.turns.forget(self._trajectory)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Sandbox]:
        async with self._sandboxes.acquire() as sandbox, self._monitor.holding(sandbox, self):
            yield MonitoredSandbox(sandbox, self._monitor, self)

    @asynccontextmanager
    async def acquire_of(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        if not isinstance(self._sandboxes, SandboxesOfSpecs):
            raise SandboxUnavailable(f"sandboxes of a {type(self._sandboxes).__name__} are all of one spec")
        policy = spec.egress or EgressPolicy()
        async with self._sandboxes.acquire_of(spec) as sandbox, self._monitor.holding(sandbox, self, policy):
            yield MonitoredSandbox(sandbox, self._monitor, self, policy)

    def alarm(self, sandbox: Sandbox, rule: RuleInfo, subject: str, evidence: Sequence[str]) -> None:
        """Take what the environment found in a sandbox of this episode as the detectors' findings are taken."""
        if rule.id in self._monitor.without:
            return
        self.alarmed = True
        self._monitor.found(
            Finding(
                rule=rule.id,
                severity=rule.severity,
                category=rule.category,
                attack=rule.attack,
                title=rule.title,
                sandbox=sandbox.name,
                at=time.time(),
                label=label_of(self.origin),
                subject=subject,
                evidence=tuple(printable(line, EVIDENCE_CHARACTERS) for line in evidence[:EVIDENCE_LINES]),
            )
        )

    async def settled(self) -> None:
        """Whatever the episode did so far is judged: ``alerts`` is complete."""
        await self._monitor.settled(self)


class MonitoredSandbox:
    """A ``Sandbox`` that reports to the monitor what it is about to run; everything else goes straight to the
    sandbox."""

    def __init__(
        self, sandbox: Sandbox, monitor: SandboxMonitor, watch: EpisodeMonitor, policy: EgressPolicy | None = None
    ) -> None:
        """``policy`` as ``SandboxMonitor.hold`` takes it."""
        self._sandbox, self._monitor, self._watch, self._policy = sandbox, monitor, watch, policy
        self._tests = ComparedTests(sandbox, self._feed, monitor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    @property
    def _observed(self) -> bool:
        return getattr(self._sandbox, "observed", False)  # sandboxes of services and containers are not

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
            self._feed(argv=argv, stdin=given, compares=compares)
            return await self._sandbox.exec(argv, stdin=stdin, env=env, timeout_s=timeout_s, alone=alone)

    async def run_python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        async with self._comparing(code if may_change_files(code) else None) as compares:
            self._feed(code=code, compares=compares)
            return await self._sandbox.run_python(code, timeout_s=timeout_s)

    @asynccontextmanager
    async def _comparing(self, text: str | None) -> AsyncIterator[frozenset[str]]:
        """Tests that the call may change; afterwards what became of them is told: a renamed function is no
        tampering."""
        if text is None or not self._observed:
            yield frozenset()
            return
        async with self._tests.comparing(text) as compares:
            yield compares

    async def write_file(self, path: str, content: bytes) -> None:
        if self._observed:
            await self._tests.begin()
        before = await self._content(path) if judges(path) else None
        asks: Kept = "less"
        if before is not None and before[0]:
            asks = await self._asks(path, before[1], content)
        found = None if before is None else before[0]
        code = content.decode("utf-8", "replace")
        self._feed(writes=path, code=code, found=found, adds=asks == "the same", rewrites=asks == "as much")
        if self._observed:
            self._tests.returns(path, code)
        await self._sandbox.write_file(path, content)

    async def _asks(self, path: str, before: bytes, after: bytes) -> Kept:
        if self._observed:
            return await self._tests.written(path, before, after)
        return lines_kept(path, before.decode("utf-8", "replace"), after.decode("utf-8", "replace"))

    async def _content(self, path: str) -> tuple[bool, bytes]:
        """Whether it is there, and what it holds, before it is written: a test that was there is somebody else's."""
        try:
            return True, await self._sandbox.read_file(path)
        except OSError as error:
            return not isinstance(error, FileNotFoundError | NotADirectoryError), b""

    async def reset(self) -> None:
        await self._sandbox.reset()
        self._tests.forget()
        self._monitor.hold(self._sandbox, self._watch, self._policy)

    def _feed(self, **what: Any) -> None:
        label = label_of(self._watch.origin)
        self._sandbox.label(label)
        event = ExecEvent(sandbox=self._sandbox.name, at=time.time(), label=label, observed=self._observed, **what)
        self._monitor.ran(event)


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
