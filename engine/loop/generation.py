"""The generation lane: it plays groups beside the training, as many as the buffer has slots for.

    fill ──► planner ──► WAITING ──► one task per group ──► READY ──► next ──► the step
      ▲                                  │ came back            │ teaches nothing
      └──────────────────────────────────┴──────────────────────┘

Who waits for whom: ``next``, the step's side, waits until the buffer has a batch; a group waits for a slot, which is
free again once the generator has the weights of the step that trained on it; a rollout waits for room in its worker.
What a group raises is raised in ``next``.

A pause lets what is being played end and begins nothing, except for a step that already waits for its batch.  Which
prompt is played and what it draws hangs on its number alone; when it starts, and under which weights, on the clock.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.cluster.workers import WorkerGroup
from engine.loop.buffer import Batch, GivenUp, GroupBuffer, GroupStatus, ReadyGroup, check_staleness
from engine.loop.device_turns import DeviceTurns, Groups, multiplexing_of
from engine.loop.group_filters import comparable, fewest_compared, informative
from engine.loop.judge_phase import Judging
from engine.loop.phases import Phases
from engine.loop.planner import Planner, Played
from engine.loop.quarantine import Quarantine
from engine.loop.state import RunState
from engine.rollout.requests import EpisodeRequest
from engine.spec.recipe import Recipe
from engine.spec.resources import Resources
from engine.spec.rollout_group import GroupPlan, RolloutGroup
from engine.spec.schedule import Schedule
from engine.spec.trajectory import Trajectory

OCCUPANCY: tuple[GroupStatus, ...] = ("waiting", "running", "ready")
METRICS = {f"buffer/{status}" for status in OCCUPANCY} | {
    "buffer/trainer_waited_seconds",
    "buffer/generation_blocked_seconds",
    "buffer/discarded_stale",
    "redundancy/unused_rollouts",
    "redundancy/unused_tokens",
}
"""What each step reports: as the buffer was when the step took its batch and since the step before
(docs/algorithms.md)."""


@dataclass(slots=True)
class Costs:
    """What was lost or waited for since the last batch."""

    discarded_stale: int = 0
    """Groups that were given up because no step could train on them in time."""
    unused_rollouts: int = 0
    unused_tokens: int = 0
    blocked_s: float = 0.0
    """How long nothing was played because no slot was free."""


class GenerationLane:
    """A ``GroupSource``.  Belongs to one attempt; begins with what the state's buffer holds."""

    def __init__(
        self,
        planner: Planner,
        state: RunState,
        phases: Phases,
        workers: WorkerGroup,
        quarantine: Quarantine,
        judging: Judging | None,
        *,
        recipe: Recipe,
        schedule: Schedule,
        resources: Resources,
        rl_steps: int,
    ) -> None:
        self._planner = planner
        self._state = state
        self._phases = phases
        self._workers = workers
        self._quarantine = quarantine
        self._judging = judging
        self._recipe = recipe
        self._schedule = schedule
        self._rl_steps = rl_steps
        sampling = recipe.selection.dynamic_sampling
        rounds = 1 if sampling is None else sampling.max_rounds
        self._buffer = GroupBuffer(
            schedule,
            version=state.finished_steps,
            most_dropped=(rounds - 1) * schedule.prompts_per_step,
            state=state.buffer.model_copy(update={"ready": [self._restored(entry) for entry in state.buffer.ready]}),
        )
        self._tasks_taken, self._prompts = state.tasks_taken, state.prompts.get("train", 0)
        self._playing: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._step_waits = False
        self._turns: DeviceTurns | None = None
        if schedule.multiplexing:
            settings = multiplexing_of(schedule, resources)
            self._turns = DeviceTurns(workers, phases.spans, self._groups, settings=settings)
        self._costs = Costs()
        self._idle_since: float | None = None
        self._last_batch_at = time.monotonic()

    # ---- the step's side ----

    async def exchanged(self, version: int) -> None:
        await self._end(self._buffer.advance(version))
        if self._turns is not None:
            await self._turns.give_back()
        self._fill()

    async def next(self, step: int) -> Played:
        """The batch of ``step``.  Raises StalenessExceeded, RunFailed, and what a group has raised."""
        began = time.monotonic()
        batch, occupancy = await self._batch()
        check_staleness(batch, version=step - 1, ratio=self._schedule.async_ratio)
        await self.reclaim_devices()
        return self._as_played(batch, occupancy, waited_s=time.monotonic() - began)

    async def release_devices(self) -> None:
        if self._turns is not None:
            await self._turns.for_rollouts()

    async def reclaim_devices(self) -> None:
        if self._turns is not None and self._buffer.counts["taken"]:
            with self._phases.progress.waiting_on("devices"):
                await self._turns.for_training()

    def trained(self, played: Played) -> None:
        self._buffer.trained()

    def record(self) -> None:
        """An alert that came after its episode is known to this process alone until it stands on the trajectory."""
        state = self._buffer.state()
        state.ready = [self._marked(entry) for entry in state.ready]
        self._state.buffer = state
        self._state.tasks_taken = self._tasks_taken
        self._state.prompts["train"] = self._prompts

    def _restored(self, entry: ReadyGroup) -> ReadyGroup:
        return entry.model_copy(update={"members": self._quarantine.marked_before(entry.members)})

    def _marked(self, entry: ReadyGroup) -> ReadyGroup:
        return entry.model_copy(update={"members": self._quarantine.marked(entry.members, self._state.quarantine)})

    async def close(self) -> None:
        for task in self._playing:
            task.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)

    async def _batch(self) -> tuple[Batch, dict[str, float]]:
        """Wait for it; and how full the buffer was when it was taken."""
        self._step_waits = True
        self._drop_barren()
        try:
            while True:
                self._fill()
                if self._failure is not None:
                    raise self._failure
                occupancy = {f"buffer/{status}": float(self._buffer.counts[status]) for status in OCCUPANCY}
                if (batch := self._buffer.take()) is not None:
                    self._drop_barren()
                    return batch, occupancy
                self._changed.clear()
                with self._phases.progress.waiting_on("generation"):
                    await self._changing()
        finally:
            self._step_waits = False

    async def _changing(self) -> None:
        if self._turns is None:
            await self._changed.wait()
        else:
            await self._turns.change(self._changed)

    def _groups(self) -> Groups:
        counts = self._buffer.counts
        may_train = bool(counts["taken"]) or self._buffer.has_batch
        return Groups(counts["ready"] + counts["taken"], counts["running"], may_train)

    def _as_played(self, batch: Batch, occupancy: dict[str, float], *, waited_s: float) -> Played:
        now, costs = time.monotonic(), self._costs
        entries = sorted((*batch.groups, *batch.dropped), key=lambda entry: entry.plan.prompt)
        played = Played(self._tasks_taken, prompts=self._prompts, groups=[entry.group for entry in entries])
        played.discarded = sum((Counter(entry.discarded) for entry in entries), Counter())
        played.rounds = -(-len(entries) // self._schedule.prompts_per_step)
        played.seconds = now - self._last_batch_at
        self._note_idle(now)
        played.metrics = occupancy | {
            "buffer/trainer_waited_seconds": waited_s,
            "buffer/generation_blocked_seconds": costs.blocked_s,
            "buffer/discarded_stale": float(costs.discarded_stale),
            "redundancy/unused_rollouts": float(costs.unused_rollouts),
            "redundancy/unused_tokens": float(costs.unused_tokens),
        }
        if self._turns is not None:
            played.metrics |= self._turns.metrics()
        self._costs, self._last_batch_at = Costs(), now
        return played

    async def _end(self, given_up: GivenUp) -> None:
        """What is being played for nothing; its tokens are counted when it comes back."""
        self._costs.discarded_stale += len(given_up.running) + len(given_up.ready)
        self._count_unused(rollout for entry in given_up.ready for rollout in entry.members)
        for plan in given_up.running:
            await self._workers.abort_group((plan.prompt, plan.version))

    def _count_unused(self, rollouts: Iterable[Trajectory]) -> None:
        for rollout in rollouts:
            self._costs.unused_rollouts += 1
            self._costs.unused_tokens += rollout.sampled_tokens

    # ---- the lane's side ----

    def _fill(self) -> None:
        """Start what there are slots and further steps for; how many rollouts play at once, the workers know."""
        if self._phases.pause_wanted and not self._step_waits:
            return
        while self._failure is None and self._is_needed():
            if not self._buffer.counts["waiting"]:
                self._plan_round()
            plan = self._buffer.start()
            if plan is None:
                break
            self._begin(plan)
        self._note_idle(time.monotonic())

    def _is_needed(self) -> bool:
        """Whether the steps that are left train on more groups than have started."""
        left = (self._rl_steps - self._state.finished_steps) * self._schedule.prompts_per_step
        return self._buffer.started < left + (self._schedule.redundant_groups if left else 0)

    def _plan_round(self) -> None:
        """The groups of one batch, planned as a synchronous run would plan them: seeds do not hang on the clock."""
        played = Played(self._tasks_taken, prompts=self._prompts)
        version = self._prompts // self._schedule.prompts_per_step
        plans = self._planner.plans(version, played, self._state.experts)
        self._buffer.plan(replace(plan, seed_version=plan.version) for plan in plans)
        self._tasks_taken, self._prompts = plans[-1].tasks_before + 1, self._prompts + len(plans)

    def _begin(self, plan: GroupPlan) -> None:
        task = asyncio.create_task(self._play(plan, self._planner.requests([plan])))
        self._playing.add(task)
        task.add_done_callback(self._ended)

    async def _play(self, plan: GroupPlan, requests: list[EpisodeRequest]) -> None:
        began = time.monotonic()
        collected = await self._workers.collect_group(
            requests, enough=self._schedule.group_size, fewest=fewest_compared(self._recipe.credit)
        )
        self._phases.spans.add("rollouts", f"prompt {plan.prompt}", time.monotonic() - began)
        self._phases.spans.add_turns(collected.trajectories)
        self._phases.spans.add_unkept(collected.unkept_turns)
        self._costs.unused_rollouts += collected.unused_rollouts
        self._costs.unused_tokens += collected.unused_tokens
        group = await self._judged(RolloutGroup(plan, tuple(collected.trajectories)))
        self._came_back(group, collected.discarded)
        self._fill()

    async def _judged(self, group: RolloutGroup) -> RolloutGroup:
        """With a judge's verdicts, where credit asks for them and the group has something to compare."""
        has_use = comparable(self._recipe.credit, [group]) and not self._teaches_nothing(group)
        if self._judging is None or not has_use or not self._judging.has_weight(group.plan.step):
            return group
        began = time.monotonic()
        [judged] = await self._judging.with_verdicts([group], alive=self._phases.progress.progressed)
        self._phases.spans.add("reward", f"prompt {group.plan.prompt}", time.monotonic() - began)
        return judged

    def _came_back(self, group: RolloutGroup, discarded: Counter[str]) -> None:
        """The prompt of one that was given up meanwhile is in the buffer again."""
        prompt = group.plan.prompt
        if not self._buffer.is_running(prompt, group.plan.version):
            self._count_unused(group.rollouts)
        else:
            self._buffer.finish(prompt, group.rollouts, discarded)
            if self._teaches_nothing(group):
                self._buffer.drop(prompt)
        self._phases.progress.progressed()

    def _drop_barren(self) -> None:
        """Those that came back when groups had been replaced often enough for the step before."""
        for entry in self._buffer.ready:
            if self._teaches_nothing(entry.group):
                self._buffer.drop(entry.plan.prompt)

    def _teaches_nothing(self, group: RolloutGroup) -> bool:
        if self._recipe.selection.dynamic_sampling is None:
            return False
        return not informative(comparable(self._recipe.credit, [group]))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._playing.discard(task)
        if not task.cancelled():
            self._failure = self._failure or task.exception()
        self._changed.set()

    def _note_idle(self, now: float) -> None:
        """Count the time in which nothing was played although further steps need groups.  Call it at every change."""
        if self._idle_since is not None:
            self._costs.blocked_s += now - self._idle_since
        is_idle = not self._buffer.counts["running"] and self._is_needed()
        self._idle_since = now if is_idle else None
