"""The supervised stages of a run, before its first RL step.

    the files of stages are read to their end: what cannot be learned is refused before anything is
    for each stage, from where the newest checkpoint stands:
        cold-start     its steps, in slices: between two of them the curve grows
        checkpoint     every ``checkpoint_every`` steps of the stage, and before a pause
    a checkpoint of step 0

A stage that was killed in its middle goes on from the last checkpoint, to the same bits.
"""

from collections.abc import Sequence

from engine.cluster.workers import WorkerGroup
from engine.failures import RunFailed, divergence_named
from engine.loop.milestones import Milestones
from engine.loop.phases import Phases
from engine.loop.state import RunState
from engine.reporting.event_writer import EventWriter
from engine.spec.event import StageProgress
from engine.spec.supervised import Demonstrations, Stage
from engine.training.recordings import BadRecording
from engine.training.stages import StageBegun

SLICE = 10
"""Supervised steps per slice, at most."""


class StageRunner:
    """Belongs to one attempt.  ``run`` is called once; it does nothing where the stages are over."""

    def __init__(
        self,
        stages: Sequence[Stage],
        state: RunState,
        phases: Phases,
        workers: WorkerGroup,
        events: EventWriter,
        milestones: Milestones,
    ) -> None:
        self._stages = stages
        self._state = state
        self._phases = phases
        self._workers = workers
        self._events = events
        self._milestones = milestones

    async def run(self) -> None:
        if self._state.cold_started:
            return
        if not all(isinstance(stage.data, Demonstrations) for stage in self._stages):
            await self._read_files()
        while self._state.finished_stages < len(self._stages):
            await self._run_stage(self._state.finished_stages)
        self._state.cold_started = True
        if self._milestones.trains:
            await self._milestones.checkpoint()
        await self._phases.boundary()

    async def _read_files(self) -> None:
        async with self._phases.phase("cold-start", 0):
            try:
                while not (read := await self._workers.read_on()).is_done:
                    self._phases.progress.progressed()
            except BadRecording as error:
                raise RunFailed(str(error)) from error
        for name, digest in read.digests.items():
            if self._state.stage_files.setdefault(name, digest) != digest:
                raise RunFailed(f"{name} has changed since the run began: a run learns from one content")

    async def _run_stage(self, number: int) -> None:
        stage, begun = self._stages[number], None
        if stage.epochs:  # how many steps that is, the data tell
            async with self._phases.phase("cold-start", 0):
                begun = await self._begin(number)
        steps = begun.steps if begun else stage.steps
        is_saved = True
        while self._state.stage_steps < steps:
            if not is_saved:
                await self._milestones.checkpoint()
                await self._phases.boundary()
            async with self._phases.phase("cold-start", 0, stage=self._progress(number, steps)):
                begun = begun or await self._begin(number)
                await self._until_checkpoint(number, stage, steps)
            is_saved = False
        self._state.finished_stages += 1
        self._state.stage_steps = 0

    def _progress(self, number: int, steps: int) -> StageProgress:
        done = self._state.stage_steps
        before = self._state.cold_start_steps - done
        return StageProgress(stage=number + 1, of=len(self._stages), before=before, steps=steps, done=done)

    async def _begin(self, number: int) -> StageBegun:
        try:
            begun = await self._workers.stage(number)
        except BadRecording as error:
            raise RunFailed(str(error)) from error
        if begun.counts:
            self._events.log("info", "loop", _described(number, self._stages[number], begun))
        return begun

    async def _until_checkpoint(self, number: int, stage: Stage, steps: int) -> None:
        """Steps up to the next checkpoint, to the end of the stage, or until a pause is wanted."""
        while self._state.stage_steps < steps:
            first = self._state.stage_steps + 1
            last = min(steps, *(_next(self._state.stage_steps, every) for every in _marks(stage)))
            field = f"recipe.stages.{number}.learning_rate"
            with divergence_named(f"supervised stage {number + 1}, steps {first} to {last}", field):
                metrics = await self._workers.supervised(number, first, last)
            self._state.cold_start_steps += last - first + 1
            self._state.stage_steps = last
            self._events.metrics(
                self._state.cold_start_steps, {f"sft/{name}": value for name, value in metrics.items()}
            )
            self._phases.progress.progressed()
            if last % stage.checkpoint_every == 0 or self._phases.pause_wanted:
                return


def _marks(stage: Stage) -> list[int]:
    """After how many steps a slice ends at the latest."""
    every = [SLICE, stage.checkpoint_every]
    return [*every, stage.validation_every] if stage.validation_share else every


def _next(done: int, every: int) -> int:
    return (done // every + 1) * every


def _described(number: int, stage: Stage, begun: StageBegun) -> str:
    counted = ", ".join(f"{count} {name}" for name, count in begun.counts.items() if count)
    found = f" ({counted})" if counted else ""
    return f"supervised stage {number + 1}: {begun.steps} steps on {stage.data.kind}{found}"
