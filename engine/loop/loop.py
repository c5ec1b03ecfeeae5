"""What happens in a run, phase by phase, and who waits for whom.

    start        workers are made; weights, optimiser and counts are read from the newest checkpoint
    cold-start   learner: supervised steps, in slices           (only before step 1)
    then, with k finished steps, until k = steps:
      evaluate      generator + rollouts: held-out tasks        (before step 1, after the last, every n)
      checkpoint    learner writes, then the loop renames       (likewise)
      sync-weights  generator takes the learner's weights       (generator waits for learner)
      collect       rollouts play, generator samples            (learner waits for rollouts)
                    again with further prompts while dynamic sampling wants more groups
      score         loop: groups, rewards, what is left out or masked
      judge         a judge's verdicts, where credit asks for them
      credit        learner: advantages, old log-probs          (the trajectories go there, columns come back)
      update        learner: optimiser updates; k grows         (rollouts wait for learner)
                    the step's rollouts are reported
    finish       the summary is the last event

A recipe without RL has 0 steps: it is evaluated once, after its cold start.  A step whose rollouts
teach nothing has no credit, and no update unless self-imitation replays; k grows all the same.

The loop is synchronous: version k samples what update k + 1 learns from, so staleness is 0 and a
step depends on nothing but the weights before it and the run's seed.  That is why a resumed run
ends with the same weights.  Events of step k + 1 are in the spool before checkpoint k + 1 exists.

Beside the work runs one watcher: it ends the work when the service cancels or refuses the attempt,
and when nothing has moved for ``schedule.stall_timeout_s``.  Pausing happens between phases.  What the
sandboxes tried is told by a thread (security_events.py) while it happens; the last of it before ``finished``.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from engine.cluster.workers import WorkerGroup
from engine.durable import DamagedFile
from engine.failures import AttemptFailed, AttemptRefused, Cancelled, RunFailed, divergence_named
from engine.loop.checkpoint import CheckpointError, Checkpoints, Damaged
from engine.loop.expert_starts import learn
from engine.loop.group_filters import Selected, comparable, enough_informative, masked, select
from engine.loop.judge_phase import Judging, judging_for
from engine.loop.metrics import StepFacts, learner_metrics, quarantine_metrics, step_metrics
from engine.loop.planner import Planner, Played
from engine.loop.progress import Progress
from engine.loop.quarantine import (
    HeldGroup,
    Quarantine,
    Release,
    hold,
    is_out,
    released,
    without_quarantined,
)
from engine.loop.requirements import lacking
from engine.loop.run_control import RunControl
from engine.loop.run_log import RunLog
from engine.loop.settlement import settlements, trained_on
from engine.loop.state import RunState
from engine.loop.summary import summary_of
from engine.models.tokenizer import tokenizer_for
from engine.reporting.event_writer import EventWriter
from engine.reporting.security_events import SecurityEvents
from engine.rollout.evaluation import evaluation_metrics
from engine.rollout.requests import evaluation_requests
from engine.spec import event
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory
from engine.training.columns import CreditColumns, UpdateRequest, with_columns
from engine.training.recordings import BadRecording
from sandboxes.interface import SandboxUnavailable

COLD_START_SLICE = 10
"""Supervised steps per slice: between slices a cancel is heard, and the learning curve gets a point."""
GRACE_S = 1.0
"""How long work that is being ended may take to clean up."""

Ending = Literal["succeeded", "cancelled"]


@dataclass
class Spent:
    """How long a phase took, once it is over."""

    seconds: float = 0.0


class Loop:
    """One attempt at a run.  ``run`` is called once."""

    def __init__(
        self,
        spec: RunSpec,
        workers: WorkerGroup,
        events: EventWriter,
        checkpoints: Checkpoints,
        control: RunControl,
        quarantine: Quarantine,
        security_events: SecurityEvents,
    ) -> None:
        self._spec = spec
        self._workers = workers
        self._events = events
        self._run_log = RunLog(events, release_within_steps=spec.environment.response.release_within_steps)
        self._checkpoints = checkpoints
        self._control = control
        self._quarantine = quarantine
        self._security_events = security_events
        self._state = RunState(spec=spec)
        self._planner = Planner(spec)
        self._judging: Judging | None = None
        self.progress = Progress(spec.rl_steps, workers)

    async def run(self) -> Ending:
        """Do the work unless the watcher ends it; the workers are closed in any case.

        Raises RunFailed (told in ``finished``), AttemptFailed, AttemptRefused, and what the work raises.
        """
        self._control.attached()
        self._security_events.start()
        try:
            await self._watched(self._work())
            await self._close()
            self._events.finish("succeeded", None, summary_of(self._state))
        except Cancelled:
            await self._close()
            self._events.finish("cancelled", "cancelled on request", summary_of(self._state))
            return "cancelled"
        except RunFailed as failure:
            await self._close()
            self._events.finish("failed", str(failure), summary_of(self._state))
            raise
        finally:
            await self._close()
        return "succeeded"

    async def _work(self) -> None:
        await self._start()
        await self._cold_start()
        while True:
            await self._evaluate_if_due()
            await self._checkpoint_if_due()
            if self._state.finished_steps == self._spec.rl_steps:
                break
            await self._step()
        await self._finish()

    async def _start(self) -> None:
        found = self._checkpoints.newest()
        if found.state is not None:
            self._state = found.state
        done = self._state.finished_steps
        self._events.emit(
            event.Started,
            from_step=done,
            total_steps=self._spec.rl_steps,
            from_cold_start_step=self._state.cold_start_steps,
        )
        self._events.admit_losses()
        async with self._phase("start", done):
            onward = "the run begins anew" if found.state is None else f"the run goes on after step {done}"
            for damaged in found.damaged:
                self._set_aside(damaged, onward)
            if problems := lacking(self._spec):
                raise RunFailed("; ".join(map(str, problems)))
            self._judging = judging_for(self._spec)
            try:
                await self._workers.start()
            except SandboxUnavailable as error:
                raise RunFailed(f"sandboxes cannot be made here: {error}") from error
            except BadRecording as error:
                raise RunFailed(str(error)) from error
            self.progress.decided_through = self._state.quarantine.decided_through
            if found.state is not None:
                await self._load_checkpoint(done, verified=found.verified)
                self._events.log("info", "loop", f"resumed after step {done}")
                self._announce(done, seconds=0.0)
        await self._boundary()

    async def _load_checkpoint(self, step: int, *, verified: bool) -> None:
        if not verified:
            self._run_log.no_manifest(step)
        try:
            await self._workers.load(self._checkpoints.path(step))
        except DamagedFile as error:
            if verified:
                raise CheckpointError(
                    f"{error}, although it is what was written: by another version of Palestra?"
                ) from error
            self._set_aside(Damaged(step, str(error)), "the next attempt goes on from the one before")
            raise AttemptFailed(f"the checkpoint after step {step} is damaged: {error}") from error

    def _set_aside(self, damaged: Damaged, onward: str) -> None:
        """Told first: who is killed in between tells it again."""
        self._run_log.damaged(damaged, onward)
        self._checkpoints.set_aside(damaged.step)

    async def _cold_start(self) -> None:
        steps = self._spec.recipe.cold_start_steps
        if steps > 0 and not self._state.cold_started:
            async with self._phase("cold-start", 0):
                for first in range(1, steps + 1, COLD_START_SLICE):
                    last = min(first + COLD_START_SLICE - 1, steps)
                    with divergence_named(f"cold-start steps {first} to {last}", "recipe.cold_start.learning_rate"):
                        loss = await self._workers.cold_start(first, last)
                    self._events.metrics(last, {"sft/loss": loss})
                    self.progress.progressed()
        if not self._state.cold_started:
            self._state.cold_started = True
            self._state.cold_start_steps = steps
            await self._checkpoint()
            await self._boundary()

    async def _step(self) -> None:
        """One batch of rollouts and its updates."""
        step, began = self._state.finished_steps + 1, time.monotonic()
        version = self._state.finished_steps
        await self._sync_weights(step)
        played, collect_s = await self._collect(step)
        selected, release = await self._score(step, played)
        selected, learned, update_s = await self._learn(step, selected, release)
        self._events.emit_all([(event.QuarantineSettled, fields) for fields in settlements(step, release, learned)])
        self._count(step, played, selected, release)
        seconds = time.monotonic() - began
        self.progress.step_took(seconds)
        updated = learned.get("train/updates", 0.0) > 0
        facts = StepFacts(self._spec, played, selected, policy_version=version, updated=updated)
        self._events.metrics(
            step,
            step_metrics(facts)
            | learned
            | quarantine_metrics(self._spec, selected, release)
            | {
                "perf/tokens_per_s": sum(rollout.sampled_tokens for rollout in selected.rollouts) / collect_s,
                "perf/step_seconds": seconds,
                "perf/collect_seconds": collect_s,
                "perf/update_seconds": update_s,
                "perf/rss_mib": await self._measure_memory(),
            },
        )
        await self._boundary()

    async def _sync_weights(self, step: int) -> None:
        async with self._phase("sync-weights", step):
            await self._workers.sync_weights(self._state.finished_steps)
        await self._boundary()

    async def _collect(self, step: int) -> tuple[Played, float]:
        """Further rounds of prompts follow while dynamic sampling wants more groups and may have them."""
        sampling = self._spec.recipe.selection.dynamic_sampling
        played = Played(self._state.tasks_taken, prompts=self._state.prompts.get("train", 0))
        async with self._phase("collect", step) as spent:
            for _ in range(1 if sampling is None else sampling.max_rounds):
                plans = self._planner.plans(self._state.finished_steps, played, self._state.experts)
                played.add(plans, await self._workers.collect(self._planner.requests(plans)))
                self.progress.progressed()
                if enough_informative(self._spec, played.groups):
                    break
            self._run_log.discarded(step, played.discarded)
        await self._boundary()
        return played, spent.seconds

    async def _score(self, step: int, played: Played) -> tuple[Selected, Release]:
        """Part those in quarantine from the others; leave out groups in which nobody is left to compare with; drop
        and mask as the recipe says."""
        async with self._phase("score", step):
            self._take_review_decisions()
            if not any(group.rollouts for group in played.groups):
                reasons = ", ".join(f"{count} {reason}" for reason, count in played.discarded.items())
                raise RunFailed(f"no episode of step {step} could be played ({reasons})")
            marked = self._quarantine.marked_groups(played.groups, self._state.quarantine)
            quarantined = [rollout for rollout in rollouts_in(marked) if is_out(rollout)]
            clean = [without_quarantined(group) for group in marked]
            if not quarantined and not comparable(self._spec.recipe.credit, clean):
                raise RunFailed(f"no group of step {step} has two episodes left to compare")
            selected = replace(select(self._spec, clean), quarantined=quarantined)
            self._events.trajectories([*rollouts_in(selected.dropped), *quarantined])
            release = released(
                self._state.quarantine, step, within=self._spec.environment.response.release_within_steps
            )
            hold(release, marked)
            self._run_log.quarantine(step, selected, release)
        return selected, release

    async def _learn(self, step: int, selected: Selected, release: Release) -> tuple[Selected, dict[str, float], float]:
        """What the learner says of the step, empty where it was not asked, and the seconds of its update.

        Self-imitation is asked also where nobody is trained on: the step's means belong to its baselines, and a
        buffer that is full is replayed (SPEAR, algorithm 1, lines 19 and 29 to 37).
        """
        judged: dict[str, float] = {}
        credited = selected.teaches or bool(release.groups)
        if credited:
            selected, judged = await self._judge(step, selected)
            selected = await self._credit(step, selected, release)
        elif self._spec.recipe.self_imitation is None or not selected.kept:
            self._events.trajectories(rollouts_in(selected.kept))
            self._run_log.nothing_to_learn(step, len(selected.rollouts))
            return selected, {}, 0.0
        learned, seconds = await self._update(step, selected, release, credited=credited)
        self._run_log.expired(step, learned)
        if not selected.teaches and not release.groups and not learned["updates"]:
            self._run_log.nothing_to_learn(step, len(selected.rollouts))
        return selected, learner_metrics(learned) | judged, seconds

    async def _judge(self, step: int, selected: Selected) -> tuple[Selected, dict[str, float]]:
        if self._judging is None or not self._judging.has_weight(step):
            return selected, {}
        async with self._phase("judge", step):
            with self.progress.waiting_on("judge"):
                judged = await self._judging.judge(selected.kept, alive=self.progress.progressed)
            for warning in judged.warnings:
                self._events.log("warning", "judge", f"step {step}: {warning}")
        await self._boundary()
        return replace(selected, kept=judged.groups), judged.metrics

    async def _credit(self, step: int, selected: Selected, release: Release) -> Selected:
        async with self._phase("credit", step):
            compared_again = self._compared_again(release)
            with divergence_named(f"credit of step {step}", "recipe.optimizer.learning_rate"):
                columns = await self._workers.credit(selected.kept, [group for _, group in compared_again])
            kept = [group.with_rollouts(self._credited(group.rollouts, columns)) for group in selected.kept]
            back = [
                rollout
                for held, group in compared_again
                for rollout in self._credited(group.rollouts, columns)
                if rollout.id in held.out
            ]
        await self._boundary()
        return replace(selected, kept=kept, released=back)

    def _credited(self, rollouts: Sequence[Trajectory], columns: Mapping[str, CreditColumns]) -> list[Trajectory]:
        text_of = tokenizer_for(self._spec.model.vocabulary).decode
        return [with_columns(rollout, columns[rollout.id], text_of=text_of) for rollout in rollouts]

    def _compared_again(self, release: Release) -> list[tuple[HeldGroup, RolloutGroup]]:
        """The held groups in which a rollout that was released has somebody to be compared with.

        None of their rollouts is quarantined any more; the recipe's own masks hold.
        """
        selection = self._spec.recipe.selection
        return [
            (
                held,
                held.group.with_rollouts(
                    masked(selection, rollout.model_copy(update={"masked_because": None}))
                    for rollout in held.group.rollouts
                ),
            )
            for held in release.groups
            if comparable(self._spec.recipe.credit, [held.group])
        ]

    async def _update(
        self, step: int, selected: Selected, release: Release, *, credited: bool
    ) -> tuple[dict[str, float], float]:
        """The rollouts are reported with what became of them, also where the update fails for good."""
        async with self._phase("update", step) as spent:
            groups, back = self._without_those_alerted_since(selected, release)
            request = UpdateRequest.of(step, groups, back, credited=credited)
            try:
                with divergence_named(f"update of step {step}", "recipe.optimizer.learning_rate"):
                    learned = await self._workers.update(request)
            except RunFailed:
                self._events.trajectories([*rollouts_in(groups), *back])
                raise
            release.updated = trained_on(step, back, learned)
            self._events.trajectories([*trained_on(step, rollouts_in(groups), learned), *release.updated])
        return learned, spent.seconds

    def _without_those_alerted_since(
        self, selected: Selected, release: Release
    ) -> tuple[list[RolloutGroup], list[Trajectory]]:
        """What is kept and what is released; an alert that came after its rollout was scored masks it all the same."""
        before = [*rollouts_in(selected.kept), *selected.released]
        groups = self._quarantine.marked_groups(selected.kept, self._state.quarantine)
        back = self._quarantine.marked(selected.released, self._state.quarantine)
        now = [*rollouts_in(groups), *back]
        if any(is_out(new) and not is_out(old) for new, old in zip(now, before, strict=True)):
            hold(release, groups)
        return groups, back

    def _take_review_decisions(self) -> None:
        self._state.quarantine = self._quarantine.absorbed(self._state.quarantine)
        self.progress.decided_through = self._state.quarantine.decided_through

    def _count(self, step: int, played: Played, selected: Selected, release: Release) -> None:
        """All together and only now: a pause inside the step saves the state of the step before."""
        emitted = [*selected.rollouts, *selected.quarantined]
        self._state.finished_steps = step
        self._state.tasks_taken = played.tasks_taken
        self._state.prompts["train"] = played.prompts
        self._state.trajectories += len(emitted)
        self._state.sampled_tokens += sum(trajectory.sampled_tokens for trajectory in emitted)
        self._state.quarantine = self._state.quarantine.model_copy(update={"held": release.held})
        if (starts := self._spec.recipe.expert_starts) is not None:
            marked = self._quarantine.marked_groups(played.groups, self._state.quarantine)
            learn(self._state.experts, starts, [without_quarantined(group) for group in marked])

    async def _evaluate_if_due(self) -> None:
        done = self._state.finished_steps
        if not self._state.evaluation_due():
            return
        async with self._phase("evaluate", done):
            await self._workers.sync_weights(done)
            requests = evaluation_requests(
                self._spec, done, self._state.evaluation_tasks(), prompts=self._state.prompts
            )
            collected = await self._workers.collect(requests)
            self._run_log.discarded(done, collected.discarded)
            if not collected.trajectories:
                raise RunFailed(f"no episode of the evaluation after step {done} could be played")
            values = evaluation_metrics(collected.trajectories)
            self._events.trajectories(collected.trajectories)
            self._events.metrics(done, values)
            self._state.evaluations[done] = values
            self._state.count_evaluation(requests)
            self._state.trajectories += len(collected.trajectories)
            if done in self._checkpoints.steps():
                with self._writing_checkpoint():
                    self._checkpoints.amend(self._state)
        await self._boundary()

    async def _checkpoint_if_due(self) -> None:
        if self._state.checkpoint_due() and self._state.finished_steps not in self._checkpoints.steps():
            await self._checkpoint()
            await self._boundary()

    async def _checkpoint(self) -> None:
        done, began = self._state.finished_steps, time.monotonic()
        async with self._phase("checkpoint", done):
            with self._writing_checkpoint():
                partial = self._checkpoints.begin()
                await self._workers.save(partial)
                self._checkpoints.complete(partial, self._state)
                self._announce(done, seconds=time.monotonic() - began)

    @contextmanager
    def _writing_checkpoint(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            step = self._state.finished_steps
            raise AttemptFailed(f"the checkpoint after step {step} cannot be written: {error}") from error

    async def _finish(self) -> None:
        async with self._phase("finish", self._state.finished_steps):
            await self._measure_memory()

    async def _close(self) -> None:
        """Everybody ends; what the sandboxes tried last is told.  Twice is fine."""
        try:
            if self._judging is not None:
                await self._judging.close()
        finally:
            try:
                await self._workers.close()
            finally:
                self._security_events.close()

    # ---- between phases ----

    @asynccontextmanager
    async def _phase(self, phase: event.Phase, step: int) -> AsyncIterator[Spent]:
        """Told when it begins and, unless something is raised in it, when it ends; timed."""
        began, spent = time.monotonic(), Spent()
        self.progress.enter(phase, step)
        self._events.emit(event.PhaseChanged, step=step, phase=phase)
        yield spent
        spent.seconds = time.monotonic() - began
        self._state.seconds[phase] = self._state.seconds.get(phase, 0.0) + spent.seconds
        self._events.emit(event.PhaseChanged, step=step, phase=phase, seconds=spent.seconds)

    async def _boundary(self) -> None:
        """If a pause is wanted: save what is finished, and wait.  Everything in memory stays as it is."""
        if self._control.desired != "pause":
            return
        if self._state.cold_started and self._state.finished_steps not in self._checkpoints.steps():
            await self._checkpoint()
        async with self._phase("paused", self._state.finished_steps):
            while self._control.desired == "pause":
                await asyncio.sleep(0.1)
                self.progress.progressed()

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it ends, or until the watcher has a reason to end it."""
        working, watching = asyncio.create_task(work), asyncio.create_task(self._watch())
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                await asyncio.wait({working}, timeout=GRACE_S)
        finally:
            working.cancel()
            watching.cancel()
        if working.done() and not working.cancelled():
            return working.result()
        return watching.result()

    async def _watch(self) -> None:
        """Only ever ends by raising why the work has to end."""
        while True:
            if self._control.ended_because is not None:
                raise AttemptRefused(self._control.ended_because)
            if self._control.desired == "cancel":
                raise Cancelled
            if self.progress.silent_s > self._spec.schedule.stall_timeout_s:
                raise AttemptFailed(self._stall())
            await self._control.change(timeout_s=min(1.0, self._spec.schedule.stall_timeout_s / 4))

    def _stall(self) -> str:
        since = time.strftime("%H:%M:%S UTC", time.gmtime(self.progress.since))
        awaited = self.progress.waiting_for or "nobody"
        return f"stalled: phase {self.progress.phase} of step {self.progress.step} waits for {awaited} since {since}"

    def _announce(self, step: int, *, seconds: float) -> None:
        """Say once that there is a checkpoint, also if its attempt was killed before it could."""
        if not self._checkpoints.announced(step):
            path, size_bytes = self._checkpoints.path(step), self._checkpoints.size_bytes(step)
            self._events.emit(event.Checkpoint, step=step, path=str(path), size_bytes=size_bytes, seconds=seconds)
            self._checkpoints.mark_announced(step)

    async def _measure_memory(self) -> float:
        mib = await self._workers.rss_bytes() / 2**20
        self._state.peak_rss_mib = max(self._state.peak_rss_mib, mib)
        return mib
