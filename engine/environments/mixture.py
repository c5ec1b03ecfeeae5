"""Several environments as one: each task is of one of them, and what is asked about it is asked of that one.

Which part the n-th task is of hangs on the mixture's seed, the split and n alone, so that a run that goes on after a
crash, and every process of it, sees the same tasks.  Groups therefore belong to one part each.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from random import Random

from engine.environments.contract import (
    Demonstrator,
    Environment,
    JudgeVerdict,
    Manner,
    Oracle,
    RestorableSessions,
    Sandboxes,
    Script,
    Session,
    TaskFetcher,
)
from engine.environments.tasks import SplitTasks, task_id, task_number
from engine.seeds import derived_seed
from engine.spec.message import ToolSchema
from engine.spec.mixture import Mixture
from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task, ToolCall

BLOCK = 1024
"""Tasks whose parts are drawn at once."""


class Draw:
    """The part of each task of a split, by its place in the mixture; drawn as far as somebody has asked.

    It keeps 9 bytes per task.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        self._weights = weights
        self._random = Random(seed)
        self._parts, self._turns = array("B"), array("Q")
        self._drawn = Counter[int]()

    def __getitem__(self, number: int) -> tuple[int, int]:
        """Return the place of the part that the task ``number`` is of, and how many tasks of that part come before."""
        while number >= len(self._parts):
            for part in self._random.choices(range(len(self._weights)), self._weights, k=BLOCK):
                self._parts.append(part)
                self._turns.append(self._drawn[part])
                self._drawn[part] += 1
        return self._parts[number], self._turns[number]

    def counts(self, size: int) -> list[int]:
        """How many of the first ``size`` tasks each part has."""
        drawn = Counter(self[number][0] for number in range(size))
        return [drawn[part] for part in range(len(self._weights))]


class MixtureEnvironment:
    """``parts`` are in the order of those of ``mixture``.

    It has a script, verdicts or snapshots of a task where the task's part has them.
    """

    def __init__(self, mixture: Mixture, dataset: Dataset, parts: Sequence[Environment]) -> None:
        self.parts = parts
        self._names = [part.name for part in mixture.parts]
        self._dataset = dataset
        weights = [part.weight for part in mixture.parts]
        self._draws: dict[Split, Draw] = {
            "train": Draw(weights, derived_seed("mixture", mixture.seed, "train")),
            "heldout": Draw(weights, derived_seed("mixture", mixture.seed, "heldout")),
        }

    def tasks(self, split: Split) -> Sequence[Task]:
        """Numbered through all parts; ``Task.part`` says of which one each is."""
        return SplitTasks(self._dataset, split, self._task)

    async def fetch(self, split: Split, number: int) -> None:
        place, turn = self._draws[split][number]
        part = self.parts[place]
        if isinstance(part, TaskFetcher):
            await part.fetch(split, turn)

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        part, own = self.own(task)
        return part.tools(own)

    def session(self, task: Task, sandboxes: Sandboxes) -> AbstractAsyncContextManager[Session]:
        part, own = self.own(task)
        return part.session(own, sandboxes)

    @property
    def restorable(self) -> bool:
        return all(isinstance(part, RestorableSessions) and part.restorable for part in self.parts)

    def script(self, task: Task, manner: Manner, rng: Random) -> Script:
        """Raises TypeError where the task's part has no demonstrator."""
        part, own = self.own(task)
        if not isinstance(part, Demonstrator):
            raise TypeError(f"{type(part).__name__} has no demonstrator")
        return part.script(own, manner, rng)

    def verdicts(self, task: Task, calls: Sequence[Sequence[ToolCall]], answer: str | None) -> list[JudgeVerdict]:
        """Raises TypeError where the task's part knows none."""
        part, own = self.own(task)
        if not isinstance(part, Oracle):
            raise TypeError(f"{type(part).__name__} is no oracle")
        return part.verdicts(own, calls, answer)

    def counts(self, split: Split, size: int) -> list[int]:
        """How many of the first ``size`` tasks of a split each part has."""
        return self._draws[split].counts(size)

    def _task(self, split: Split, number: int) -> Task:
        place, own = self._found(split, number)
        return own.model_copy(update={"id": task_id(split, number), "part": self._names[place]})

    def own(self, task: Task) -> tuple[Environment, Task]:
        """The environment that a task is of, and the task as that one knows it."""
        place, own = self._found(task.split, task_number(task))
        return self.parts[place], own

    def _found(self, split: Split, number: int) -> tuple[int, Task]:
        place, turn = self._draws[split][number]
        tasks = self.parts[place].tasks(split)
        return place, tasks[turn % len(tasks)]
