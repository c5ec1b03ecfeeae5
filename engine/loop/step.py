"""What happens in one RL step, phase by phase, and who waits for whom.

    sync-weights  generator takes the learner's weights       (generator waits for learner)
    collect       groups come from rounds.py, which plays     (learner waits for rollouts)
                  them now, or from generation.py, which
                  plays them all the time
    score         loop: groups, rewards, what is left out or masked
    judge         a judge's verdicts, where credit asks for them
    credit        learner: advantages, old log-probs          (the trajectories go there, columns come back)
    update        learner: optimiser updates; k grows         (rollouts wait for learner)
                  old log-probs, where one update follows and nothing asks for them before
                  the step's rollouts are reported

A step whose rollouts teach nothing has no credit, and no update unless self-imitation replays; k grows
all the same.  With ``schedule.async_ratio`` 0, version k samples what update k + 1 learns from, so staleness is 0 and a
step depends on nothing but the weights before it and the run's seed; above it, docs/staleness.md.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from engine.cluster.workers import WorkerGroup
from engine.failures import RunFailed, divergence_named
from engine.loop.expert_starts import learn
from engine.loop.group_filters import Selected, comparable, masked, select
from engine.loop.judge_phase import Judged, Judging
from engine.loop.metrics import StepFacts, learner_metrics, quarantine_metrics, staleness_shares, step_metrics
from engine.loop.phases import Phases
from engine.loop.planner import Played
from engine.loop.quarantine import HeldGroup, Quarantine, Release, hold, is_out, released, without_quarantined
from engine.loop.rounds import GroupSource
from engine.loop.run_log import RunLog
from engine.loop.settlement import settlements, trained_on
from engine.loop.state import RunState
from engine.loop.usage import UsageLog
from engine.models.vocabulary import tokens_of
from engine.reporting.event_writer import EventWriter
from engine.spec import event
from engine.spec.mixture import RunEnvironment, sandboxes_of
from engine.spec.model import Model
from engine.spec.recipe import Recipe
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.schedule import Schedule
from engine.spec.trajectory import Trajectory
from engine.training.columns import CreditColumns, UpdateRequest, with_columns, with_old_logprobs


class StepRunner:
    """Runs the steps of one attempt, one at a time.  ``state`` changes at the end of a step and not before."""

    def __init__(
        self,
        source: GroupSource,
        state: RunState,
        phases: Phases,
        workers: WorkerGroup,
        events: EventWriter,
        run_log: RunLog,
        quarantine: Quarantine,
        judging: Judging | None,
        usage: UsageLog,
        *,
        recipe: Recipe,
        environment: RunEnvironment,
        model: Model,
        schedule: Schedule,
    ) -> None:
        self._recipe = recipe
        self._schedule = schedule
        self._environment = environment
        self._model = model
        self._source = source
        self._state = state
        self._phases = phases
        self._workers = workers
        self._events = events
        self._run_log = run_log
        self._quarantine = quarantine
        self._judging = judging
        self._usage = usage
        self._exchanged: int | None = None
        """The version that the generator was last given."""

    async def run_next(self) -> None:
        """Run one batch of rollouts and its updates."""
        step, began = self._state.finished_steps + 1, time.monotonic()
        version = self._state.finished_steps
        await self.exchange_weights(step)
        played = await self._collect(step)
        selected, release = await self._score(step, played)
        selected, learned, update_s = await self._learn(step, selected, release)
        self._events.emit_all([(event.QuarantineSettled, fields) for fields in settlements(step, release, learned)])
        self._count(step, played, selected, release)
        seconds = time.monotonic() - began
        self._phases.progress.step_took(seconds)
        updated = learned.get("train/updates", 0.0) > 0
        facts = StepFacts(self._recipe, played, selected, policy_version=version, updated=updated)
        self._events.metrics(
            step,
            step_metrics(facts)
            | learned
            | quarantine_metrics(sandboxes_of(self._environment), selected, release)
            | played.metrics
            | {
                "perf/tokens_per_s": sum(rollout.sampled_tokens for rollout in selected.rollouts) / played.seconds,
                "perf/step_seconds": seconds,
                "perf/eta_seconds": self._phases.progress.eta_s or 0.0,
                "perf/collect_seconds": played.seconds,
                "perf/update_seconds": update_s,
            }
            | await self._usage.step_metrics(),
        )
        spans = self._phases.spans.taken()
        if self._schedule.async_ratio:
            self._events.emit(event.LaneSpans, step=step, spans=spans)
        await self._phases.boundary()

    async def exchange_weights(self, step: int) -> None:
        """The generator takes what ``step`` begins with; once, where groups are played beside the steps."""
        if self._schedule.overlaps and self._exchanged == self._state.finished_steps:
            return
        async with self._phases.phase("sync-weights", step):
            await self._workers.sync_weights(self._state.finished_steps)
            await self._source.exchanged(self._state.finished_steps)
            self._exchanged = self._state.finished_steps
        await self._phases.boundary()

    async def _collect(self, step: int) -> Played:
        async with self._phases.phase("collect", step):
            played = await self._source.next(step)
            self._run_log.discarded(step, played.discarded)
        await self._phases.boundary()
        return played

    async def _score(self, step: int, played: Played) -> tuple[Selected, Release]:
        """Part those in quarantine from the others; leave out groups in which nobody is left to compare with; drop
        and mask as the recipe says."""
        async with self._phases.phase("score", step):
            self._take_review_decisions()
            if not any(group.rollouts for group in played.groups):
                reasons = ", ".join(f"{count} {reason}" for reason, count in played.discarded.items())
                raise RunFailed(f"no episode of step {step} could be played ({reasons})")
            marked = self._quarantine.marked_groups(played.groups, self._state.quarantine)
            quarantined = [rollout for rollout in rollouts_in(marked) if is_out(rollout)]
            clean = [without_quarantined(group) for group in marked]
            if not quarantined and not comparable(self._recipe.credit, clean):
                raise RunFailed(f"no group of step {step} has two episodes left to compare")
            selected = select(self._recipe, clean, batch=self._schedule.prompts_per_step)
            selected = replace(selected, quarantined=quarantined)
            self._events.trajectories([*rollouts_in(selected.dropped), *quarantined])
            release = released(self._state.quarantine, step, within=self._environment.response.release_within_steps)
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
        elif self._recipe.self_imitation is None or not selected.kept:
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
        if self._schedule.overlaps:
            return selected, self._reported(step, self._judging.reported(selected.kept))
        async with self._phases.phase("judge", step):
            with self._phases.progress.waiting_on("judge"):
                judged = await self._judging.judge(selected.kept, alive=self._phases.progress.progressed)
            metrics = self._reported(step, judged)
        await self._phases.boundary()
        return replace(selected, kept=judged.groups), metrics

    def _reported(self, step: int, judged: Judged) -> dict[str, float]:
        for warning in judged.warnings:
            self._events.log("warning", "judge", f"step {step}: {warning}")
        return judged.metrics

    async def _credit(self, step: int, selected: Selected, release: Release) -> Selected:
        async with self._phases.phase("credit", step):
            compared_again = self._compared_again(release)
            with divergence_named(f"credit of step {step}", "recipe.optimizer.learning_rate"):
                again = [group for _, group in compared_again]
                columns = await self._workers.credit(selected.kept, again, step=step)
            kept = [group.with_rollouts(self._credited(group.rollouts, columns)) for group in selected.kept]
            back = [
                rollout
                for held, group in compared_again
                for rollout in self._credited(group.rollouts, columns)
                if rollout.id in held.out
            ]
        await self._phases.boundary()
        return replace(selected, kept=kept, released=back)

    def _credited(self, rollouts: Sequence[Trajectory], columns: Mapping[str, CreditColumns]) -> list[Trajectory]:
        text_of = tokens_of(self._model).decode
        return [with_columns(rollout, columns[rollout.id], text_of=text_of) for rollout in rollouts]

    def _compared_again(self, release: Release) -> list[tuple[HeldGroup, RolloutGroup]]:
        """The held groups in which a rollout that was released has somebody to be compared with.

        None of their rollouts is quarantined any more; the recipe's own masks hold.
        """
        recipe = self._recipe
        return [
            (
                held,
                held.group.with_rollouts(
                    masked(recipe, rollout.model_copy(update={"masked_because": None}))
                    for rollout in held.group.rollouts
                ),
            )
            for held in release.groups
            if comparable(recipe.credit, [held.group])
        ]

    async def _update(
        self, step: int, selected: Selected, release: Release, *, credited: bool
    ) -> tuple[dict[str, float], float]:
        """The rollouts are reported with what became of them, also where the update fails for good."""
        async with self._phases.phase("update", step) as spent:
            groups, back = self._without_those_alerted_since(selected, release)
            request = UpdateRequest.of(step, groups, back, credited=credited)
            try:
                with divergence_named(f"update of step {step}", "recipe.optimizer.learning_rate"):
                    updated = await self._workers.update(request)
            except RunFailed:
                self._events.trajectories([*rollouts_in(groups), *back])
                raise
            learned = updated.metrics
            release.updated = trained_on(step, back, learned)
            reported = trained_on(step, rollouts_in(groups), learned)
            scored = [_scored(rollout, updated.old_logprobs) for rollout in [*reported, *release.updated]]
            self._events.trajectories(scored)
        if ratio := self._schedule.async_ratio:
            trained = [rollout for rollout in reported if rollout.trained_at_step is not None]
            learned |= staleness_shares(trained, policy_version=step - 1, ratio=ratio)
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
        self._phases.progress.decided_through = self._state.quarantine.decided_through

    def _count(self, step: int, played: Played, selected: Selected, release: Release) -> None:
        """All together and only now: a pause inside the step saves the state of the step before."""
        emitted = [*selected.rollouts, *selected.quarantined]
        self._state.finished_steps = step
        self._source.trained(played)
        self._state.trajectories += len(emitted)
        self._state.sampled_tokens += sum(trajectory.sampled_tokens for trajectory in emitted)
        self._state.quarantine = self._state.quarantine.model_copy(update={"held": release.held})
        if (starts := self._recipe.expert_starts) is not None:
            marked = self._quarantine.marked_groups(played.groups, self._state.quarantine)
            learn(self._state.experts, starts, [without_quarantined(group) for group in marked])


def _scored(rollout: Trajectory, old_logprobs: Mapping[str, np.ndarray]) -> Trajectory:
    """With the old log-probs that its update gave, or as credit left it."""
    return with_old_logprobs(rollout, old_logprobs[rollout.id]) if rollout.id in old_logprobs else rollout
