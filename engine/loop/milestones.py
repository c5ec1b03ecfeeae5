"""What happens between the steps of a run: held-out evaluations and checkpoints, and going on from one.

An evaluation belongs to the weights that it measured: where those have a checkpoint already, the
checkpoint is amended.  A checkpoint is announced once, also if its attempt was killed before it could.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.cluster.workers import WorkerGroup
from engine.durable import DamagedFile
from engine.failures import AttemptFailed, RunFailed
from engine.loop.checkpoint import CheckpointError, Checkpoints, Damaged, Found, written_after
from engine.loop.phases import Phases
from engine.loop.run_log import RunLog
from engine.loop.state import RunState
from engine.reporting.event_writer import EventWriter
from engine.rollout.evaluation import evaluation_metrics, report_metrics
from engine.rollout.evaluation_report import evaluation_report
from engine.rollout.requests import EpisodeRequest, evaluation_requests
from engine.spec import event
from engine.spec.exploration import Purification
from engine.spec.run import Evaluation
from engine.spec.trajectory import Trajectory


class Milestones:
    """Belongs to one attempt.

    An evaluation is due before the first step, after the last one, and every ``evaluation.every`` steps; a checkpoint
    likewise, every ``checkpoint_every`` steps.  A run that ``trains`` nothing has nothing to save: another attempt
    evaluates anew.
    """

    def __init__(
        self,
        state: RunState,
        phases: Phases,
        workers: WorkerGroup,
        events: EventWriter,
        run_log: RunLog,
        checkpoints: Checkpoints,
        *,
        evaluation: Evaluation,
        rl_steps: int,
        checkpoint_every: int,
        trains: bool,
        purification: Purification | None,
        seed: int,
        record: Callable[[], None],
    ) -> None:
        """``record`` brings the state up to date before it is saved."""
        self._record = record
        self._evaluation = evaluation
        self._rl_steps = rl_steps
        self._checkpoint_every = checkpoint_every
        self.trains = trains
        self._purification = purification
        self._seed = seed
        self._state = state
        self._phases = phases
        self._workers = workers
        self._events = events
        self._run_log = run_log
        self._checkpoints = checkpoints

    def set_aside(self, found: Found) -> None:
        """Put away the damaged checkpoints that were found on the way to a whole one."""
        onward = (
            "the run begins anew" if found.state is None else f"the run goes on after step {self._state.finished_steps}"
        )
        for damaged in found.damaged:
            self._set_aside(damaged, onward)

    async def resume(self, found: Found) -> None:
        """Give the workers the weights of the checkpoint whose state the attempt goes on from."""
        assert found.path is not None, "a state was found in a checkpoint"
        await self._load(found.path, verified=found.verified)
        self._events.log("info", "loop", f"resumed after {written_after(found.path)}")
        if self._state.cold_started:
            self._announce(self._state.finished_steps, seconds=0.0)

    async def evaluate_if_due(self) -> None:
        done = self._state.finished_steps
        if not self.evaluation_due:
            return
        async with self._phases.phase("evaluate", done):
            await self._workers.sync_weights(done)
            tasks = self._evaluation.tasks if self._at_an_end() else self._evaluation.interim_tasks
            requests = evaluation_requests(
                self._evaluation, self._purification, done, tasks, prompts=self._state.prompts, seed=self._seed
            )
            await self._evaluate(done, requests)
        await self._phases.boundary()

    async def checkpoint_if_due(self) -> None:
        if self._checkpoint_due() and self._state.finished_steps not in self._checkpoints.steps():
            await self.checkpoint()
            await self._phases.boundary()

    async def checkpoint_before_pause(self) -> None:
        """A pause saves finished steps, and nothing of one that is under way."""
        saves = self._state.cold_started and self.trains
        if saves and self._state.finished_steps not in self._checkpoints.steps():
            await self.checkpoint()

    async def checkpoint(self) -> None:
        done, began = self._state.finished_steps, time.monotonic()
        async with self._phases.phase("checkpoint", done):
            with self._writing_checkpoint():
                partial = self._checkpoints.begin()
                await self._workers.save(partial)
                self._record()
                self._checkpoints.complete(partial, self._state)
                if self._state.cold_started:
                    self._announce(done, seconds=time.monotonic() - began)

    def _at_an_end(self) -> bool:
        return self._state.finished_steps in (0, self._rl_steps)

    @property
    def evaluation_due(self) -> bool:
        every, done = self._evaluation.every, self._state.finished_steps
        due = self._at_an_end() or (every > 0 and done % every == 0)
        return due and done not in self._state.evaluations

    def _checkpoint_due(self) -> bool:
        every = self._state.finished_steps % self._checkpoint_every == 0
        return self.trains and (self._at_an_end() or every)

    async def _evaluate(self, done: int, requests: list[EpisodeRequest]) -> None:
        collected = await self._workers.collect(requests)
        self._run_log.discarded(done, collected.discarded)
        self._phases.spans.add_turns(collected.trajectories)
        if not collected.trajectories:
            raise RunFailed(f"no episode of the evaluation after step {done} could be played")
        values = evaluation_metrics(collected.trajectories) | self._report(done, collected.trajectories)
        self._events.trajectories(collected.trajectories)
        self._events.metrics(done, values)
        self._state.evaluations[done] = values
        self._state.count_evaluation(requests)
        self._state.trajectories += len(collected.trajectories)
        if done in self._checkpoints.steps():
            with self._writing_checkpoint():
                self._checkpoints.amend(self._state)

    def _report(self, done: int, trajectories: list[Trajectory]) -> dict[str, float]:
        """Keep the table of an evaluation with repeated tries, or of a run that trains nothing; its curves."""
        if self._evaluation.samples == 1 and self.trains:
            return {}
        report = evaluation_report(trajectories, step=done, samples=self._evaluation.samples)
        self._state.evaluation_report = report
        return report_metrics(report)

    async def _load(self, path: Path, *, verified: bool) -> None:
        if not verified:
            self._run_log.no_manifest(self._state.finished_steps)
        try:
            await self._workers.load(path)
        except DamagedFile as error:
            if verified:
                raise CheckpointError(
                    f"{error}, although it is what was written: by another version of Palestra?"
                ) from error
            damaged = Damaged(path, str(error))
            self._set_aside(damaged, "the next attempt goes on from the one before")
            raise AttemptFailed(f"the checkpoint after {damaged.after} is damaged: {error}") from error

    def _set_aside(self, damaged: Damaged, onward: str) -> None:
        """Log it first: an attempt that is killed in between logs it again."""
        self._run_log.damaged(damaged, onward)
        self._checkpoints.set_aside(damaged)

    @contextmanager
    def _writing_checkpoint(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            step = self._state.finished_steps
            raise AttemptFailed(f"the checkpoint after step {step} cannot be written: {error}") from error

    def _announce(self, step: int, *, seconds: float) -> None:
        """Emit once that there is a checkpoint, also if its attempt was killed before it could."""
        if not self._checkpoints.announced(step):
            path, size_bytes = self._checkpoints.path(step), self._checkpoints.size_bytes(step)
            self._events.emit(event.Checkpoint, step=step, path=str(path), size_bytes=size_bytes, seconds=seconds)
            self._checkpoints.mark_announced(step)
