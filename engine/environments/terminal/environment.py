"""terminal: tasks from a folder, solved in a shell and scored by tests that the policy never meets."""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

from engine.environments.contract import Sandboxes
from engine.environments.imported import UnusableEnvironment
from engine.environments.tasks import task_id, task_number
from engine.environments.terminal.session import TerminalSession
from engine.environments.terminal.task_folder import TerminalTask
from engine.environments.terminal.task_needs import lacking
from engine.environments.terminal.task_set import TaskSet, TasksRefused, read_tasks
from engine.environments.terminal.tools import TOOLS
from engine.spec.environment import Terminal
from engine.spec.message import ToolSchema
from engine.spec.problems import Problem
from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task

SCORING_AT_ONCE = 16
"""Sandboxes of tests at once, beside those of the policies."""


class TerminalEnvironment:
    """Reads the folder once.  Stateless: one instance serves any number of episodes at once."""

    def __init__(self, settings: Terminal, dataset: Dataset) -> None:
        """Raises ``UnusableEnvironment`` with all that is wrong with the folder."""
        self.settings = settings
        self.task_set = _read(settings)
        self._scoring = asyncio.Semaphore(SCORING_AT_ONCE)
        self._of_split = _split(self.task_set.tasks, settings.heldout_share, dataset.seed)
        self._tasks = {
            split: [_task(split, number, task) for number, task in enumerate(tasks)]
            for split, tasks in self._of_split.items()
        }

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._tasks[split]

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        return TOOLS

    def session(self, task: Task, sandboxes: Sandboxes) -> TerminalSession:
        return TerminalSession(self.settings, self._of_split[task.split][task_number(task)], sandboxes, self._scoring)


def _read(settings: Terminal) -> TaskSet:
    if settings.tasks is None:
        message, remedy = "there is no catalog of tasks here: the service has it", "set environment.tasks to a folder"
        raise UnusableEnvironment(Problem("environment.catalog", settings.catalog, message, remedy))
    try:
        found = read_tasks(Path(settings.tasks))
    except TasksRefused as refusal:
        raise UnusableEnvironment(_in_tasks(settings, refusal.problems)) from refusal
    if settings.digest is not None and found.digest != settings.digest:
        remedy = "use the folder that was meant, or the digest of this one"
        problem = f"the folder {settings.tasks} has the digest {found.digest}"
        raise UnusableEnvironment(Problem("environment.digest", settings.digest, problem, remedy))
    if problems := lacking(found.tasks, settings.sandbox, public_network=settings.public_network):
        raise UnusableEnvironment(_in_tasks(settings, problems))
    return found


def _in_tasks(settings: Terminal, problems: Sequence[Problem]) -> Problem:
    """One problem of the field that names the folder, with all that is wrong in it."""
    listed = "\n  ".join(map(str, problems))
    return Problem(
        "environment.tasks", settings.tasks, f"{len(problems)} faults:\n  {listed}\n ", "mend the folder or the spec"
    )


def _split(tasks: Sequence[TerminalTask], heldout_share: float, seed: int) -> dict[Split, list[TerminalTask]]:
    """By name and seed.  Where the share lies between 0 and 1, and there are two tasks, neither split is empty."""
    ranked = sorted(tasks, key=lambda task: hashlib.sha256(f"{seed}\0{task.name}".encode()).digest())
    number = round(heldout_share * len(ranked))
    if 0 < heldout_share < 1 and len(ranked) > 1:
        number = min(max(number, 1), len(ranked) - 1)
    return {"heldout": ranked[:number], "train": ranked[number:]}


def _task(split: Split, number: int, task: TerminalTask) -> Task:
    return Task(id=task_id(split, number), split=split, level=task.file.level, question=task.instruction, answer="")
