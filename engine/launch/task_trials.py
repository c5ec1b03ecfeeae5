"""``python -m engine tasks trials FILE``: the check of a version of the catalog, as a job on the cluster.

The job file says what is to be tried; each trial that is over is a line of the log beside it, whole and on the disk
before the next one.  A job that is killed loses the trials that were being made, and another one goes on.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from engine.environments.terminal.checking import Due, Trial, made, tries_of
from engine.environments.terminal.task_folder import TerminalTask
from engine.environments.terminal.task_needs import lacking
from engine.environments.terminal.task_set import TasksRefused, read_tasks
from engine.spec.environment import Terminal
from engine.spec.problems import Problem
from engine.spec.task_check import (
    CHECK_LOG,
    LONGEST_NOTE,
    MOST_PROBLEMS,
    CheckJob,
    DoneLine,
    FoundProblem,
    RefusedLine,
    TrialLine,
    Try,
    UnavailableLine,
    storable,
)
from sandboxes.interface import SandboxUnavailable


def run_check(file: Path) -> int:
    """Make the tries that the job file asks for; the exit code is 0 whatever came of them."""
    job = CheckJob.model_validate_json(file.read_bytes())
    with _Log(file.with_name(CHECK_LOG)) as log:
        log.write(_outcome(job, log))
    return 0


def _outcome(job: CheckJob, log: "_Log") -> RefusedLine | UnavailableLine | DoneLine:
    """Make the tries; what the last line of the log is."""
    try:
        tasks = _usable(job)
    except TasksRefused as refusal:
        return RefusedLine(problems=[FoundProblem.of(problem) for problem in refusal.problems[:MOST_PROBLEMS]])
    try:
        asyncio.run(_make(job, tasks, log))
    except* SandboxUnavailable as unavailable:
        reason = str(_first(unavailable))
    else:
        return DoneLine()
    return UnavailableLine(reason=storable(reason, LONGEST_NOTE))


async def _make(job: CheckJob, tasks: Sequence[TerminalTask], log: "_Log") -> None:
    def keep(due: Due, trial: Trial) -> None:
        log.write(
            TrialLine(
                task=due.task.name, kind=due.kind, repetition=due.repetition, reward=trial.reward,
                seconds=round(trial.seconds, 3), note=storable(trial.note, LONGEST_NOTE),
            )
        )  # fmt: skip

    done = set(job.done)
    tries = tries_of(tasks, job.check.repeat)
    left = [due for due in tries if Try(task=due.task.name, kind=due.kind, repetition=due.repetition) not in done]
    await made(_settings(job), left, jobs=job.check.at_once, on_trial=keep)


def _usable(job: CheckJob) -> Sequence[TerminalTask]:
    """The tasks.  Raises TasksRefused for another content, and for needs that the sandboxes do not meet."""
    found = read_tasks(Path(job.tasks))
    if found.digest != job.digest:
        remedy = "import the tasks again, as another version"
        raise TasksRefused([Problem("digest", found.digest, f"the stored tasks should be {job.digest}", remedy)])
    if problems := lacking(found.tasks, job.check.sandbox, public_network=job.check.public_network):
        raise TasksRefused(problems)
    return found.tasks


def _settings(job: CheckJob) -> Terminal:
    return Terminal(tasks=job.tasks, public_network=job.check.public_network, sandbox=job.check.sandbox)


def _first(group: BaseExceptionGroup[SandboxUnavailable]) -> BaseException:
    """One of them: all say the same."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner


class _Log:
    """Lines that are on the disk when they are written."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> "_Log":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, line: TrialLine | RefusedLine | UnavailableLine | DoneLine) -> None:
        os.write(self._descriptor, line.model_dump_json().encode() + b"\n")
        os.fsync(self._descriptor)
