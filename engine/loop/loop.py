"""The life of an attempt at a run, from its first phase to its last event.

    start        workers are made; weights, optimiser and counts are read from the newest checkpoint
    cold-start   supervised.py: supervised stages, in slices    (only before step 1)
    difficulty   generator + rollouts: each training task k times, where the recipe filters by that (likewise)
    then, with k finished steps, until k = steps:
      evaluate      generator + rollouts: held-out tasks        (before step 1, after the last, every n)
      checkpoint    learner writes, then the loop renames       (likewise)
      a step        step.py: sync-weights, collect, score, judge, credit, update
    finish       the summary is the last event

A recipe without RL has 0 steps: it is evaluated once, after its supervised stages.  One that trains nothing is only
that evaluation, and leaves no checkpoint.

With ``schedule.async_ratio`` 0 the loop is synchronous, so a resumed run ends with the same weights.  Above, groups are
played in a lane beside it (generation.py); a resumed run trains on the same prompts.  Events of step k + 1 are in the
spool before checkpoint k + 1 exists.

How phases are reported, paused and ended stands in phases.py, evaluations and checkpoints in milestones.py, supervised
stages in supervised.py.  What the sandboxes tried is emitted by a thread (security_events.py) while it happens; the
last of it before ``finished``.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Literal

from engine.cluster.workers import WorkerGroup
from engine.failures import AttemptFailed, Cancelled, RunFailed
from engine.loop.checkpoint import Checkpoints
from engine.loop.generation import GenerationLane
from engine.loop.judge_phase import Judging, judging_for
from engine.loop.milestones import Milestones
from engine.loop.phases import Phases
from engine.loop.planner import planner_for
from engine.loop.progress import Progress
from engine.loop.quarantine import Quarantine
from engine.loop.requirements import lacking
from engine.loop.rounds import GroupSource, Rounds
from engine.loop.run_control import RunControl
from engine.loop.run_log import RunLog
from engine.loop.state import RunState
from engine.loop.step import StepRunner
from engine.loop.summary import summary_of
from engine.loop.supervised import StageRunner
from engine.loop.task_filter import TaskFilter
from engine.loop.teacher import Teacher, teacher_of
from engine.loop.usage import UsageLog
from engine.models.refusal import ModelFolderRefused
from engine.reporting.event_writer import EventWriter
from engine.reporting.security_events import SecurityEvents
from engine.spec import event
from engine.spec.run import RunSpec
from engine.training.recordings import BadRecording
from sandboxes.cgroups.memory import total_memory
from sandboxes.interface import SandboxUnavailable

Ending = Literal["succeeded", "cancelled"]


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
        *,
        measures_only: bool = False,
    ) -> None:
        """``measures_only`` ends the run when the difficulty of its tasks is known."""
        self._spec = spec
        self._workers = workers
        self._events = events
        self._run_log = RunLog(events, release_within_steps=spec.environment.response.release_within_steps)
        self._checkpoints = checkpoints
        self._control = control
        self._quarantine = quarantine
        self._security_events = security_events
        self._measures_only = measures_only
        self._judging: Judging | None = None
        self._teacher = Teacher()
        self._source: GroupSource | None = None
        self._state = RunState(spec=spec)
        self.progress = Progress(spec.rl_steps, workers)
        self._usage = UsageLog(
            workers, events, self._state, self.progress, stall_timeout_s=spec.schedule.stall_timeout_s
        )
        self._phases = Phases(
            self._state,
            events,
            control,
            self.progress,
            stall_timeout_s=spec.schedule.stall_timeout_s,
            before_pause=self._before_pause,
            after_pause=self._after_pause,
        )
        self._milestones = Milestones(
            self._state,
            self._phases,
            workers,
            events,
            self._run_log,
            checkpoints,
            evaluation=spec.evaluation,
            rl_steps=spec.rl_steps,
            checkpoint_every=spec.schedule.checkpoint_every,
            trains=spec.recipe.trains,
            purification=spec.recipe.purification,
            seed=spec.seed,
            record=self._record,
        )
        self._stages = StageRunner(spec.recipe.stages, self._state, self._phases, workers, events, self._milestones)

    async def run(self) -> Ending:
        """Do the work unless the watcher ends it; the workers are closed in any case.

        Raises RunFailed (its reason stands in ``finished``), AttemptFailed, AttemptRefused, and what the work raises.
        """
        self._control.attached()
        self._security_events.start()
        try:
            await self._phases.watched(self._work())
            await self._close()
            self._events.finish("succeeded", None, self._summary())
        except Cancelled:
            await self._close()
            self._events.finish("cancelled", "cancelled on request", self._summary())
            return "cancelled"
        except RunFailed as failure:
            await self._close()
            self._events.finish("failed", str(failure), self._summary())
            raise
        finally:
            await self._close()
        return "succeeded"

    async def _work(self) -> None:
        await self._start()
        await self._stages.run()
        await self._task_filter().filter_if_due()
        if not self._measures_only:
            await self._reinforce()
        await self._finish()

    async def _reinforce(self) -> None:
        self._source = self._group_source()
        steps = self._step_runner(self._source)
        while True:
            if self._spec.schedule.overlaps:  # before an evaluation: what is played beside it needs slots
                await steps.exchange_weights(self._state.finished_steps + 1)
            if self._milestones.evaluation_due:
                await self._source.release_devices()
            await self._milestones.evaluate_if_due()
            await self._milestones.checkpoint_if_due()
            if self._state.finished_steps == self._spec.rl_steps:
                break
            await steps.run_next()

    async def _start(self) -> None:
        found = self._checkpoints.newest()
        if found.state is not None:
            self._state.go_on_from(found.state)
        done = self._state.finished_steps
        self._events.emit(
            event.Started,
            from_step=done,
            total_steps=self._spec.rl_steps,
            from_cold_start_step=self._state.cold_start_steps,
        )
        self._events.admit_losses()
        async with self._phases.phase("start", done):
            self._milestones.set_aside(found)
            if problems := await asyncio.to_thread(lacking, self._spec):  # it may read all weights once
                reason = "; ".join(map(str, problems))
                # Memory that it had before is free again once its present owners end.
                if found.state is not None and not lacking(self._spec, free_bytes=total_memory()):
                    raise AttemptFailed(reason)
                raise RunFailed(reason)
            self._judging = judging_for(
                self._spec.recipe, self._spec.environment, self._spec.dataset, served=self._workers.ask_judge
            )
            self._teacher = teacher_of(self._spec)
            self._run_log.teacher(self._teacher)
            await self._start_workers()
            self._usage.begin()
            self.progress.decided_through = self._state.quarantine.decided_through
            if found.state is not None:
                await self._milestones.resume(found)
        await self._phases.boundary()

    async def _start_workers(self) -> None:
        try:
            await self._workers.start()
        except SandboxUnavailable as error:
            raise RunFailed(f"sandboxes cannot be made here: {error}") from error
        except (BadRecording, ModelFolderRefused) as error:
            raise RunFailed(str(error)) from error

    def _task_filter(self) -> TaskFilter:
        return TaskFilter(
            self._spec,
            self._state,
            self._phases,
            self._workers,
            self._events,
            self._run_log,
            self._checkpoints,
            may_leave_nothing=self._measures_only,
        )

    def _group_source(self) -> GroupSource:
        spec, planner = self._spec, planner_for(self._spec, self._state.tasks, self._teacher.experts)
        if not spec.schedule.overlaps:
            return Rounds(planner, self._state, self._phases, self._workers, recipe=spec.recipe)
        return GenerationLane(
            planner,
            self._state,
            self._phases,
            self._workers,
            self._quarantine,
            self._judging,
            recipe=spec.recipe,
            schedule=spec.schedule,
            resources=spec.resources,
            rl_steps=spec.rl_steps,
        )

    def _record(self) -> None:
        if self._source is not None:
            self._source.record()

    async def _before_pause(self) -> None:
        await self._milestones.checkpoint_before_pause()
        if self._source is not None:
            await self._source.release_devices()

    async def _after_pause(self) -> None:
        if self._source is not None:
            await self._source.reclaim_devices()

    def _step_runner(self, source: GroupSource) -> StepRunner:
        return StepRunner(
            source,
            self._state,
            self._phases,
            self._workers,
            self._events,
            self._run_log,
            self._quarantine,
            self._judging,
            self._usage,
            recipe=self._spec.recipe,
            environment=self._spec.environment,
            model=self._spec.model,
            schedule=self._spec.schedule,
        )

    async def _finish(self) -> None:
        async with self._phases.phase("finish", self._state.finished_steps):
            await self._usage.measure()

    def _summary(self) -> dict[str, Any]:
        replacements = self._workers.replacements
        return summary_of(self._state, self._spec.recipe, rl_steps=self._spec.rl_steps, replacements=replacements)

    async def _close(self) -> None:
        """Everybody ends; what the sandboxes tried last is emitted.  Twice is fine."""
        async with AsyncExitStack() as closing:
            closing.callback(self._security_events.close)
            closing.push_async_callback(self._workers.close)
            if self._judging is not None:
                closing.push_async_callback(self._judging.close)
            if self._source is not None:
                closing.push_async_callback(self._source.close)
            closing.push_async_callback(self._usage.close)
