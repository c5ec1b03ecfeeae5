"""How hard each training task is for the policy that RL begins with: measured, kept as a table, and chosen by.

CLEANER (5.1) plays each task 8 times and drops those that always or never succeed; ALE (3.2.3) keeps tasks of moderate
pass rates.  A table grows task by task, so that whoever is killed or cancelled goes on where it stopped; it holds all
tasks, and the recipe's bounds choose among them when it is used.  No weights change here.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from engine.durable_log import Segment
from engine.models.origin import model_origin
from engine.spec.difficulty import Measurement, TaskDifficulty, task_sha256
from engine.spec.impossible import AS_STORED
from engine.spec.problems import Problem, problems_in
from engine.spec.resumption import forbidden_changes
from engine.spec.run import RunSpec
from engine.spec.selection import Difficulty
from engine.spec.trajectory import Task, Trajectory

FIELD = "recipe.selection.difficulty"
NAME = "difficulty.jsonl"
"""The table of a run that measures, in its folder."""
CHECKED_TASKS = 200
"""So many tasks of a named table are compared before a start, since some worlds take milliseconds to make one; the run
itself compares all that it keeps."""
_REMEDY = "measure again: python -m engine difficulty"
Line = TypeVar("Line", bound=BaseModel)


class TableRefused(ValueError):
    """A table that cannot be used; the problem says which and why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(frozen=True, slots=True)
class DifficultyTable:
    measurement: Measurement
    tasks: dict[int, TaskDifficulty]
    """By the task's number."""

    @property
    def missing(self) -> list[int]:
        """Tasks that are not measured yet."""
        return [number for number in range(self.measurement.tasks) if number not in self.tasks]

    def kept(self, difficulty: Difficulty, *, train_tasks: int) -> list[int]:
        """The numbers of the first ``train_tasks`` tasks that the bounds leave, rising."""
        rates = {number: task.rate for number, task in self.tasks.items() if number < train_tasks}
        return sorted(number for number, rate in rates.items() if difficulty.keeps(rate))

    def metrics(self, difficulty: Difficulty, *, train_tasks: int) -> dict[str, float]:
        tasks = [task for number, task in self.tasks.items() if number < train_tasks]
        rates = [task.rate for task in tasks if task.rate is not None]
        return {
            "difficulty/tasks": float(len(tasks)),
            "difficulty/kept": float(sum(map(difficulty.keeps, rates))),
            "difficulty/too_hard": float(sum(rate <= difficulty.above for rate in rates)),
            "difficulty/too_easy": float(sum(rate >= difficulty.below for rate in rates)),
            "difficulty/unplayed": float(len(tasks) - len(rates)),
            "difficulty/success": sum(rates) / len(rates) if rates else 0.0,
        }


def measurement_of(spec: RunSpec) -> Measurement:
    """What a table that this run makes belongs to.  Reads the model's weights once."""
    difficulty = spec.recipe.selection.difficulty
    assert difficulty is not None, "asked for only where the recipe filters by difficulty"
    return Measurement(
        tasks=spec.dataset.train_tasks,
        rollouts=difficulty.rollouts,
        spec=spec.model_dump(mode="json"),
        weights=_weights(spec),
    )


def _weights(spec: RunSpec) -> dict[str, str]:
    origin = model_origin(spec.model)
    folders = {folder for folder in (origin.weights, origin.adapter) if folder is not None}
    files = sorted(file for folder in folders for file in folder.glob("*.safetensors"))
    return {file.name: file_sha256(file) for file in files}


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class GrowingTable:
    """A table on disk, one writer.  What ``add`` was given stands there when it returns, whoever is killed then."""

    def __init__(self, path: Path, measurement: Measurement) -> None:
        """Go on with the table that is there.  Raises TableRefused where that belongs to another run."""
        begun = _whole_lines(path)
        if begun:
            self.table = _table(begun, path)
            if differing := _differing(self.table.measurement, measurement, path):
                problem = "it was measured with something else than what this run would measure with"
                raise _cannot_go_on(path, f"{problem} ({', '.join(differing)})")
            self._segment = Segment.reopened(path, size=sum(len(line) + 1 for line in begun))
        else:
            path.unlink(missing_ok=True)  # a first line that was torn
            self.table = DifficultyTable(measurement, {})
            self._segment = Segment.begun(path, sync=True)
            self._segment.append([measurement.model_dump_json().encode()], sync=True)

    def add(self, tasks: Sequence[TaskDifficulty]) -> None:
        self._segment.append([task.model_dump_json().encode() for task in tasks], sync=True)
        self.table.tasks.update({task.number: task for task in tasks})

    def close(self) -> None:
        self._segment.close()


def _differing(begun: Measurement, now: Measurement, path: Path) -> list[str]:
    """In what a measurement is another one than that which was begun; what a run may change when it goes on is none."""
    try:
        before, after = (RunSpec.model_validate(made.spec, context=AS_STORED) for made in (begun, now))
    except ValidationError as error:
        [problem, *_] = problems_in(error, RunSpec)
        raise _cannot_go_on(path, f"line 1: {problem}: by another version of Palestra?") from None
    differing = [name for name in ("tasks", "rollouts", "weights") if getattr(begun, name) != getattr(now, name)]
    return differing + [field for field, _, _ in forbidden_changes(before, after)]


def _cannot_go_on(path: Path, message: str) -> TableRefused:
    return TableRefused(Problem(FIELD, str(path), message, "remove it, or use another folder"))


def tallied(tasks: Sequence[tuple[int, Task]], rollouts: Iterable[Trajectory]) -> list[TaskDifficulty]:
    """How often each of the numbered ``tasks`` was solved.  A rollout that raised an alert counts as not played."""
    played, solved = Counter[int](), Counter[int]()
    for rollout in rollouts:
        if not rollout.alerts:
            played[rollout.prompt] += 1
            solved[rollout.prompt] += rollout.success
    return [
        TaskDifficulty(
            task=task.id,
            number=number,
            sha256=task_sha256(task),
            rollouts=played[number],
            successes=solved[number],
        )
        for number, task in tasks
    ]


def named_table(difficulty: Difficulty) -> DifficultyTable:
    """The whole table that the recipe names.  Raises TableRefused."""
    named = difficulty.measured
    assert named is not None, "asked for only where the recipe names a table"
    path = Path(named.file)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror}", "give the path of a table") from error
    if named.sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise _refused(path, f"its content is not what the run names (SHA-256 {named.sha256})", "put that file back")
    table = _table(content.split(b"\n")[:-1], path)
    if table.missing:
        problem = f"it holds {len(table.tasks)} of {table.measurement.tasks} tasks: its measurement has not ended"
        raise _refused(path, problem, "let it end: the same command goes on where it stopped")
    return table


def nothing_left(table: DifficultyTable, difficulty: Difficulty, *, train_tasks: int) -> Problem | None:
    """The problem that no task is left to be trained on; None where one is."""
    if table.kept(difficulty, train_tasks=train_tasks):
        return None
    found = table.metrics(difficulty, train_tasks=train_tasks)
    return Problem(
        f"{FIELD}.above",
        difficulty.above,
        f"of {found['difficulty/tasks']:.0f} tasks none has a success rate above it and below {difficulty.below:g}: "
        f"{found['difficulty/too_hard']:.0f} are too hard, {found['difficulty/too_easy']:.0f} too easy",
        "widen above and below, play more rollouts, or begin with another model, environment or supervised start",
    )


def of_another_environment(
    table: DifficultyTable, spec: RunSpec, tasks: Sequence[Task], numbers: Sequence[int]
) -> Problem | None:
    """The problem that the table's tasks of these ``numbers`` are not those of this run; None where they are."""
    measured = table.measurement.spec.get("environment", {}).get("id")
    if measured != spec.environment.id:
        problem = f"it was measured in the environment {measured}, and this run's is {spec.environment.id}"
        return Problem(f"{FIELD}.measured", _file(spec), problem, _REMEDY)
    for number in numbers:
        if table.tasks[number].sha256 != task_sha256(tasks[number]):
            problem = f"{table.tasks[number].task} was another task when it was measured"
            remedy = f"use the environment's levels and the dataset.seed of the measurement, or {_REMEDY}"
            return Problem(f"{FIELD}.measured", _file(spec), problem, remedy)
    return None


def spread(numbers: Sequence[int]) -> list[int]:
    """CHECKED_TASKS of the numbers at most, evenly and the first of them among them."""
    return list(numbers[:: max(1, -(-len(numbers) // CHECKED_TASKS))])


def differing_origin(table: DifficultyTable, spec: RunSpec) -> list[str]:
    """What of the policy and its sampling was otherwise when the table was measured, for the log."""
    before, now = table.measurement.spec, spec.model_dump(mode="json")
    schedule = ("temperature", "top_p", "top_k", "min_p")
    pairs = {"model": (before.get("model"), now["model"])} | {
        f"schedule.{name}": (before.get("schedule", {}).get(name), now["schedule"][name]) for name in schedule
    }
    return [field for field, (was, is_) in pairs.items() if was != is_]


def _file(spec: RunSpec) -> str:
    difficulty = spec.recipe.selection.difficulty
    assert difficulty is not None
    assert difficulty.measured is not None
    return difficulty.measured.file


def _whole_lines(path: Path) -> list[bytes]:
    """Those that end with a newline; [] where there is no file."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


def _table(lines: Sequence[bytes], path: Path) -> DifficultyTable:
    if not lines:
        raise _refused(path, "no whole line stands in it", "give the path of a table")
    measurement = _parsed(lines[0], Measurement, path, line=1)
    rows = [_parsed(line, TaskDifficulty, path, line=number) for number, line in enumerate(lines[1:], start=2)]
    return DifficultyTable(measurement, {row.number: row for row in rows})


def _parsed(content: bytes, kind: type[Line], path: Path, *, line: int) -> Line:
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise _refused(path, f"line {line}: {problems_in(error, kind)[0]}", _REMEDY) from None


def _refused(path: Path, message: str, remedy: str) -> TableRefused:
    return TableRefused(Problem(f"{FIELD}.measured", str(path), message, remedy))
