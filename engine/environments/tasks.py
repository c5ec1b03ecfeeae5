"""The tasks of a split: numbered, made when asked for, and known again by their id."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task


def task_id(split: Split, number: int) -> str:
    return f"{split}-{number}"


def task_number(task: Task) -> int:
    return int(task.id.removeprefix(f"{task.split}-"))


@dataclass(frozen=True)
class SplitTasks(Sequence[Task]):
    """``make`` gives the task of a number below the split's size."""

    dataset: Dataset
    split: Split
    make: Callable[[Split, int], Task]

    def __len__(self) -> int:
        return self.dataset.train_tasks if self.split == "train" else self.dataset.heldout_tasks

    @overload
    def __getitem__(self, number: int) -> Task: ...
    @overload
    def __getitem__(self, number: slice) -> list[Task]: ...
    def __getitem__(self, number: int | slice) -> Task | list[Task]:
        size = len(self)
        if isinstance(number, slice):
            return [self.make(self.split, i) for i in range(*number.indices(size))]
        if not -size <= number < size:
            raise IndexError(f"the {self.split} split has {size} tasks, not {number}")
        return self.make(self.split, number % size)
