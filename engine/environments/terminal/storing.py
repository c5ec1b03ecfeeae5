"""A set of tasks on its way into the catalog: unpacked, read as the hostile input that it is, copied, sealed.

A tar may hold plain files and folders and nothing else; what else it holds is a fault, beside those of the tasks.
Memory does not grow with the files: one is held at a time, and none is larger than ``FolderLimits`` allows.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from engine.disk import write_durably
from engine.environments.archive import UNREADABLE, unpacked
from engine.environments.terminal.folder_files import content_of
from engine.environments.terminal.swe_rows import RowsRefused, write_rows
from engine.environments.terminal.task_folder import TASK_FILE, TerminalTask
from engine.environments.terminal.task_set import TaskSet, TasksRefused, read_tasks
from engine.spec.check_log import MOST_PROBLEMS, FoundProblem, ReadReport
from engine.spec.problems import Problem
from engine.spec.task_files import TASKS_FOLDER, TASKS_MANIFEST, StoredTaskEntry, TaskFileEntry, TaskManifest


def store(source: Path, target: Path) -> ReadReport:
    """Make ``target/sealed`` of a folder of tasks, a tar of one, or rows of a SWE-bench form (``.jsonl``).

    ``target`` is the caller's own; what an earlier try has left in it is removed.  With faults nothing is sealed.
    """
    for name in ("unpacked", "sealed"):
        shutil.rmtree(target / name, ignore_errors=True)
    folder, problems = _opened(source, target / "unpacked")
    try:
        found = read_tasks(folder) if folder is not None else None
    except TasksRefused as refusal:
        known = {problem.field for problem in problems}
        problems += [_beside(folder, problem) for problem in refusal.problems if problem.field not in known]
    else:
        if found is not None and not problems:
            problems += _seal(found, target / "sealed")
    shutil.rmtree(target / "unpacked", ignore_errors=True)
    return ReadReport(problems=[FoundProblem.of(problem) for problem in problems[:MOST_PROBLEMS]], faults=len(problems))


def _beside(folder: Path | None, problem: Problem) -> Problem:
    """Where the folder stands on this machine is nobody's business."""
    return replace(problem, field="files") if problem.field == str(folder) else problem


def _opened(source: Path, folder: Path) -> tuple[Path | None, list[Problem]]:
    """The folder with the tasks, None where nothing of it could be read, and what was wrong with its package."""
    if source.is_dir():
        return source, []
    if source.name.endswith(".jsonl"):
        try:
            write_rows(source, folder)
        except RowsRefused as refusal:
            return None, refusal.problems
        return folder, []
    try:
        problems = unpacked(source, folder)
    except UNREADABLE as error:
        message = f"it is no tar that can be read ({str(error)[:200] or type(error).__name__})"
        return None, [Problem("files", source.name, message, "make it with: tar -cf tasks.tar -C FOLDER .")]
    return _within(folder), problems


def _within(folder: Path) -> Path:
    """The folder in it, where an archive wraps all tasks into one."""
    inside = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    wrapped = len(inside) == 1 and inside[0].is_dir() and not (inside[0] / TASK_FILE).is_file()
    return inside[0] if wrapped and any(inside[0].glob(f"*/{TASK_FILE}")) else folder


# Sealing
def _seal(found: TaskSet, folder: Path) -> list[Problem]:
    """Copy what was read, and write the manifest.  A file that is another one by now is a fault."""
    problems = []
    for task in found.tasks:
        try:
            _copy_task(task, folder / TASKS_FOLDER / task.name)
        except OSError as error:
            remedy = "change nothing while it is imported, and try it again"
            problems.append(Problem(task.name, task.name, str(error), remedy))
    manifest = TaskManifest(digest=found.digest, tasks=[_entry(task) for task in found.tasks])
    write_durably(folder / TASKS_MANIFEST, manifest.text().encode())
    return problems


def _copy_task(task: TerminalTask, folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True)
    for inside in sorted(task.folders):
        (folder / inside).mkdir(mode=0o700)
    for file in task.files:
        mode = 0o500 if file.executable else 0o400
        with open(os.open(folder / file.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as written:
            written.write(content_of(task.folder, file))


def _entry(task: TerminalTask) -> StoredTaskEntry:
    files = [
        TaskFileEntry(path=file.path, bytes=file.size_bytes, executable=file.executable)
        for file in sorted(task.files, key=lambda file: file.path)
    ]
    return StoredTaskEntry(
        name=task.name, digest=task.digest, level=task.file.level, has_solution=task.has_solution,
        needs_image=task.needs_image, files=files, folders=sorted(task.folders),
    )  # fmt: skip
