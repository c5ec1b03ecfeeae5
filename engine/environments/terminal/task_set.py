"""A folder of terminal tasks, read as a whole: every task of it, or every fault of it."""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from engine.environments.terminal.folder_files import LIMITS, FolderLimits
from engine.environments.terminal.task_folder import TASK_FILE, TerminalTask, task_in
from engine.spec.problems import Problem

MOST_TASKS = 20_000
MOST_FAULTS = 1000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class TasksRefused(Exception):
    """The folder cannot be used.  ``problems`` is all that is wrong with it, the first ``MOST_FAULTS`` of it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)[:MOST_FAULTS]
        left = len(problems) - len(self.problems)
        more = [f"and {left} more faults"] if left else []
        super().__init__("\n".join([*map(str, self.problems), *more]))


@dataclass(frozen=True)
class TaskSet:
    """Tasks in the order of their names."""

    folder: Path
    tasks: tuple[TerminalTask, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the names and digests of its tasks."""
        lines = "".join(f"{task.name}\0{task.digest}\n" for task in self.tasks)
        return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def read_tasks(folder: Path, limits: FolderLimits = LIMITS) -> TaskSet:
    """Each subfolder is a task, and a folder with a ``task.toml`` is one by itself.  Raises ``TasksRefused``.

    Files beside the tasks and names that begin with a dot are no tasks, and are not read.
    """
    if not folder.is_dir():
        raise TasksRefused([Problem(str(folder), "(missing)", "there is no such folder", "name a folder of tasks")])
    folder = folder.resolve()
    if (folder / TASK_FILE).is_file():
        return _set_of(folder, [folder.name], folder.parent, limits)
    names, faults = _names_in(folder)
    if not names and not faults:
        raise TasksRefused([Problem(str(folder), "(empty)", "it holds no tasks", "name a folder of tasks")])
    return _set_of(folder, names, folder, limits, faults)


def _set_of(
    folder: Path, names: Sequence[str], parent: Path, limits: FolderLimits, faults: Sequence[Problem] = ()
) -> TaskSet:
    tasks, problems = list[TerminalTask](), list(faults)
    for name in names:
        found = task_in(parent / name, limits)
        if isinstance(found, TerminalTask):
            tasks.append(found)
        else:
            problems += found
    if problems:
        raise TasksRefused(problems)
    return TaskSet(folder, tuple(tasks))


def _names_in(folder: Path) -> tuple[list[str], list[Problem]]:
    names, faults = list[str](), list[Problem]()
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            shown = os.fsencode(entry.name).decode("utf-8", "backslashreplace")
            if entry.is_symlink():
                remedy = "put the task itself into the folder"
                faults.append(Problem(shown, shown, "a symbolic link, which may lead anywhere", remedy))
            elif not entry.is_dir(follow_symlinks=False):
                continue
            elif NAME.fullmatch(entry.name) is None:
                remedy = "use letters, digits and . _ -, 100 at most"
                faults.append(Problem(shown, shown, "this is no name of a task", remedy))
            else:
                names.append(entry.name)
    if len(names) > MOST_TASKS:
        faults.append(Problem(str(folder), len(names), f"more than {MOST_TASKS} tasks", "divide the folder"))
        names = []
    return names, faults
