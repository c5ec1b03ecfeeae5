"""Which training tasks a run takes: those that its difficulty filter leaves, decided once, before the first step.

    named table     read and checked                                    (before a start, and once more here)
    no table        generator + rollouts: every task k times, batch by batch; the table stands in the run's folder

What is decided stands in the run's state: a resumed run takes the same tasks.
"""

import asyncio
from collections.abc import Sequence
from contextlib import closing

from engine.cluster.workers import WorkerGroup
from engine.environments.registry import environment_for
from engine.failures import RunFailed
from engine.loop.checkpoint import Checkpoints
from engine.loop.difficulty import (
    NAME,
    DifficultyTable,
    GrowingTable,
    TableRefused,
    differing_origin,
    measurement_of,
    named_table,
    nothing_left,
    of_another_environment,
    spread,
    tallied,
)
from engine.loop.phases import Phases
from engine.loop.run_log import RunLog
from engine.loop.state import RunState
from engine.reporting.event_writer import EventWriter
from engine.rollout.requests import difficulty_requests
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from engine.spec.selection import Difficulty
from engine.spec.trajectory import Task


def lacking_in_difficulty(spec: RunSpec) -> list[Problem]:
    """What is wrong with the table that the recipe names, if it names one."""
    difficulty = spec.recipe.selection.difficulty
    if difficulty is None or difficulty.measured is None:
        return []
    try:
        table = named_table(difficulty)
    except TableRefused as refused:
        return [refused.problem]
    measured = sorted(number for number in table.tasks if number < spec.dataset.train_tasks)
    problem = of_another_environment(table, spec, _training_tasks(spec), spread(measured)) or nothing_left(
        table, difficulty, train_tasks=spec.dataset.train_tasks
    )
    return [] if problem is None else [problem]


class TaskFilter:
    """Belongs to one attempt.  ``state`` says whether the tasks are decided already, and is told."""

    def __init__(
        self,
        spec: RunSpec,
        state: RunState,
        phases: Phases,
        workers: WorkerGroup,
        events: EventWriter,
        run_log: RunLog,
        checkpoints: Checkpoints,
        *,
        may_leave_nothing: bool,
    ) -> None:
        self._spec = spec
        self._state = state
        self._phases = phases
        self._workers = workers
        self._events = events
        self._run_log = run_log
        self._checkpoints = checkpoints
        self._may_leave_nothing = may_leave_nothing

    async def filter_if_due(self) -> None:
        """Raises RunFailed where no task is left, or the table cannot be used."""
        difficulty, decided = self._spec.recipe.selection.difficulty, self._state.tasks
        # A measurement may have left nothing; a run that goes on from it must not.
        if difficulty is None or decided or (decided is not None and self._may_leave_nothing):
            return
        try:
            table = await self._measured(difficulty) if difficulty.measured is None else named_table(difficulty)
        except TableRefused as refused:
            raise RunFailed(str(refused)) from refused
        train_tasks = self._spec.dataset.train_tasks
        problem = nothing_left(table, difficulty, train_tasks=train_tasks)
        if problem is not None and not self._may_leave_nothing:
            raise RunFailed(str(problem))
        kept, differing = table.kept(difficulty, train_tasks=train_tasks), list[str]()
        if difficulty.measured is not None:
            await self._compare_tasks(table, kept)
            differing = differing_origin(table, self._spec)
        self._run_log.filtered(len(kept), train_tasks, differing)
        self._events.metrics(self._state.finished_steps, table.metrics(difficulty, train_tasks=train_tasks))
        self._state.tasks = kept
        self._checkpoints.amend(self._state)

    async def _compare_tasks(self, table: DifficultyTable, kept: Sequence[int]) -> None:
        """In a thread: some worlds take milliseconds to make a task."""
        async with self._phases.phase("difficulty", self._state.finished_steps):
            tasks = _training_tasks(self._spec)
            problem = await asyncio.to_thread(of_another_environment, table, self._spec, tasks, kept)
        if problem is not None:
            raise RunFailed(str(problem))

    async def _measured(self, difficulty: Difficulty) -> DifficultyTable:
        tasks = _training_tasks(self._spec)
        # In a thread: weights of many GiB are read once.
        measurement = await asyncio.to_thread(measurement_of, self._spec)
        with closing(GrowingTable(self._checkpoints.run_dir / NAME, measurement)) as growing:
            missing = growing.table.missing
            for first in range(0, len(missing), self._batch(difficulty)):
                batch = missing[first : first + self._batch(difficulty)]
                await self._measure(growing, [(number, tasks[number]) for number in batch], difficulty.rollouts)
                await self._phases.boundary()
            return growing.table

    def _batch(self, difficulty: Difficulty) -> int:
        """Tasks that are played at once: about as many rollouts as a step has."""
        schedule = self._spec.schedule
        return max(1, schedule.prompts_per_step * schedule.group_size // difficulty.rollouts)

    async def _measure(self, growing: GrowingTable, tasks: Sequence[tuple[int, Task]], rollouts: int) -> None:
        version = self._state.finished_steps
        async with self._phases.phase("difficulty", version):
            await self._workers.sync_weights(version)
            numbers = [number for number, _ in tasks]
            requests = difficulty_requests(
                self._spec.schedule, numbers, rollouts, version=version, seed=self._spec.seed
            )
            collected = await self._workers.collect(requests)
            self._run_log.discarded(version, collected.discarded)
            growing.add(tallied(tasks, collected.trajectories))
            self._run_log.measured(len(growing.table.tasks), growing.table.measurement.tasks)


def _training_tasks(spec: RunSpec) -> Sequence[Task]:
    return environment_for(spec.environment, spec.dataset).tasks("train")
