"""``python -m engine tasks trials FILE``: the check of a version of the catalog, as a job on the cluster.

The job file says what is to be tried; each trial that is over is a line of the log beside it, whole and on the disk
before the next one.  A job that is killed loses the trials that were being made, and another one goes on.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from engine.environments.terminal.checking import Due, Trial, made, tries_of
from engine.environments.terminal.task_folder import TerminalTask
from engine.environments.terminal.task_needs import lacking
from engine.environments.terminal.task_set import TasksRefused, read_tasks
from engine.launch.check_log import CheckLog, first_of
from engine.spec.check_log import (
    CHECK_LOG,
    LONGEST_NOTE,
    MOST_PROBLEMS,
    DoneLine,
    FoundProblem,
    RefusedLine,
    UnavailableLine,
    storable,
)
from engine.spec.environment import Terminal
from engine.spec.problems import Problem
from engine.spec.task_check import TaskCheckJob, TrialLine, Try
from sandboxes.interface import SandboxUnavailable


def run_check(file: Path) -> int:
    """Make the tries that the job file asks for; the exit code is 0 whatever came of them."""
    job = TaskCheckJob.model_validate_json(file.read_bytes())
    with CheckLog(file.with_name(CHECK_LOG)) as log:
        log.write(_outcome(job, log))
    return 0


def _outcome(job: TaskCheckJob, log: CheckLog) -> RefusedLine | UnavailableLine | DoneLine:
    """Make the tries; what the last line of the log is."""
    try:
        tasks = _usable(job)
    except TasksRefused as refusal:
        return RefusedLine(problems=[FoundProblem.of(problem) for problem in refusal.problems[:MOST_PROBLEMS]])
    try:
        asyncio.run(_make(job, tasks, log))
    except* SandboxUnavailable as unavailable:
        reason = str(first_of(unavailable))
    else:
        return DoneLine()
    return UnavailableLine(reason=storable(reason, LONGEST_NOTE))


async def _make(job: TaskCheckJob, tasks: Sequence[TerminalTask], log: CheckLog) -> None:
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


def _usable(job: TaskCheckJob) -> Sequence[TerminalTask]:
    """The tasks.  Raises TasksRefused for another content, and for needs that the sandboxes do not meet."""
    found = read_tasks(Path(job.tasks))
    if found.digest != job.digest:
        remedy = "import the tasks again, as another version"
        raise TasksRefused([Problem("digest", found.digest, f"the stored tasks should be {job.digest}", remedy)])
    if problems := lacking(found.tasks, job.check.sandbox, public_network=job.check.public_network):
        raise TasksRefused(problems)
    return found.tasks


def _settings(job: TaskCheckJob) -> Terminal:
    return Terminal(tasks=job.tasks, public_network=job.check.public_network, sandbox=job.check.sandbox)
