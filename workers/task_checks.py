"""Follows the checks of task sets: a job on the cluster tries the tasks, and its log becomes rows.

    no job, no folder            -> the job file is written, with the trials that are over, and the job submitted
    job alive                    -> new lines of its log become trials
    job over, "done"             -> stored; whoever looks sees what every task's trials say
    job over, "refused"          -> stored, with everything that the tasks need and these sandboxes do not give
    job over, "unavailable"      -> waits, says why, and goes on with what is left after ``WAIT``
    job over without a last line -> another job goes on with what is left, ``MOST_JOBS`` in all
    cancelled                    -> stored, and the job is stopped

Tasks are hostile and run in sandboxes, which the workers' process must not make: it knows the database
(docs/decisions/0008-sandboxes-inside-the-ray-container.md).  What the job writes is believed as far as it can be read.
"""

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from engine.disk import write_durably
from engine.spec.problems import Problem
from engine.spec.task_check import (
    CHECK_LINE,
    CHECK_LOG,
    CheckJob,
    DoneLine,
    RefusedLine,
    TrialLine,
    Try,
    UnavailableLine,
)
from engine.spec.task_files import TASKS_FOLDER
from webapp.catalog.models import TaskSetState, TaskSetVersion, TaskTrial
from workers.ray_jobs import Job, Jobs, RayUnreachable, engine_command

WAIT = timedelta(seconds=60)
"""Before sandboxes that could not be made are asked for again."""
MOST_JOBS = 3
_LONGEST_LINE = 2**22
Line = TrialLine | RefusedLine | UnavailableLine | DoneLine

log = structlog.get_logger(__name__)


class LogUnreadable(Exception):
    """A line of a check's log is none."""


def follow_checks(jobs: Jobs) -> None:
    """Raises RayUnreachable."""
    for version in TaskSetVersion.objects.filter(state=TaskSetState.CHECKING).order_by("pk"):
        follow_check(version, jobs)


def follow_check(version: TaskSetVersion, jobs: Jobs) -> None:
    """Do what is next for the version's check.  Raises RayUnreachable."""
    # First the job, then its log: one that has ended by then has written everything that it ever will.
    job = jobs.all().get(version.submission_id)
    with transaction.atomic():
        rows = TaskSetVersion.objects.select_for_update(of=("self",)).select_related("task_set__team")
        locked = rows.filter(pk=version.pk, state=TaskSetState.CHECKING, check_id=version.check_id).first()
        if locked is None:
            return
        locked.heartbeat_at = timezone.now()
        is_due = _followed(locked, job)
        locked.save()
    if is_due:
        _begin_job(locked, jobs)
    elif locked.state != TaskSetState.CHECKING and job is not None and job.state == "alive":
        jobs.stop(version.submission_id)


def _followed(version: TaskSetVersion, job: Job | None) -> bool:
    """Bring the row up to date; return whether a job is to be submitted for it."""
    if version.cancel_asked:
        _end(version)
        return False
    if job is None and not _folder(version).is_dir():
        return not version.waiting_for or timezone.now() - version.waiting_since >= WAIT
    try:
        last = _read(version)
    except LogUnreadable as error:
        _end(version, Problem("check", "", f"the check wrote what cannot be read: {error}", "check it again"))
        return False
    if job is not None and job.state == "alive":
        version.waiting_for = ""
        return False
    return _ended(version, job, last)


def _ended(version: TaskSetVersion, job: Job | None, last: Line | None) -> bool:
    match last:
        case DoneLine():
            _end(version)
        case RefusedLine(problems=problems):
            version.problems, version.faults = [problem.model_dump() for problem in problems], len(problems)
            message = f"{len(problems)} needs of the tasks are not met by these sandboxes"
            _end(version, Problem("check", len(problems), message, "choose other sandboxes, or change the tasks"))
        case UnavailableLine(reason=reason):
            version.waiting_for, version.waiting_since = reason, timezone.now()
            _leave(version)
        case _:
            return _died(version, job)
    return False


def _died(version: TaskSetVersion, job: Job | None) -> bool:
    """Whether another job goes on with what is left."""
    version.check_jobs += 1
    why = "its job is gone: the cluster was restarted" if job is None else f"its job died: {job.last_words}"
    log.warning("a check's job has died", version=version.pk, why=why)
    if version.check_jobs >= MOST_JOBS:
        _end(version, Problem("check", version.check_jobs, why, "check it again; ask whoever runs the service"))
        return False
    _leave(version)
    return True


def _end(version: TaskSetVersion, problem: Problem | None = None) -> None:
    version.state, version.state_since = TaskSetState.STORED, timezone.now()
    version.cancel_asked, version.waiting_for = False, ""
    version.problem = None if problem is None else problem.as_dict()
    _leave(version)


def _leave(version: TaskSetVersion) -> None:
    """Nobody reads the job's folder any more; another job has another one."""
    folder = _folder(version)
    version.check_id, version.log_bytes = uuid4(), 0
    transaction.on_commit(lambda: shutil.rmtree(folder, ignore_errors=True))


def _folder(version: TaskSetVersion) -> Path:
    return Path(settings.PALESTRA_RUNS) / "task-checks" / str(version.check_id)


# The job
def _begin_job(version: TaskSetVersion, jobs: Jobs) -> None:
    """Raises RayUnreachable, after which nothing of the job is left; without the tasks' files the check ends."""
    try:
        _submit(version, jobs)
    except RayUnreachable:
        shutil.rmtree(_folder(version), ignore_errors=True)
        raise
    except OSError as error:
        log.exception("a check cannot be begun", version=version.pk)
        message = f"the files of the tasks cannot be read: {error.strerror or error}"
        problem = Problem("check", "", message, "import the tasks again")
        rows = TaskSetVersion.objects.filter(pk=version.pk, check_id=version.check_id)
        rows.update(state=TaskSetState.STORED, state_since=timezone.now(), problem=problem.as_dict())
        shutil.rmtree(_folder(version), ignore_errors=True)


def _submit(version: TaskSetVersion, jobs: Jobs) -> None:
    folder = _folder(version)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    over = TaskTrial.objects.filter(task__version=version).values_list("task__name", "kind", "repetition")
    check = version.check_wanted
    assert check is not None  # a version that is checked has one
    job = CheckJob(
        tasks=str(version.folder / TASKS_FOLDER),
        digest=version.manifest().digest,
        check=check,
        done=[Try.model_validate(dict(zip(("task", "kind", "repetition"), trial, strict=True))) for trial in over],
    )
    write_durably(folder / "check.json", job.model_dump_json().encode())
    jobs.submit(version.submission_id, engine_command("tasks", "trials", str(folder / "check.json")))


# Its log
def _read(version: TaskSetVersion) -> Line | None:
    """Keep the trials that are new in the log; return its last line, which no other follows.  Raises LogUnreadable."""
    lines = list(_new_lines(version))
    ids = dict(version.tasks.values_list("name", "id"))
    trials = [line for line in lines if isinstance(line, TrialLine)]
    if unknown := [trial.task for trial in trials if trial.task not in ids]:
        raise LogUnreadable(f"the set has no task {unknown[0]}")
    rows = [
        TaskTrial(
            task_id=ids[trial.task], kind=trial.kind, repetition=trial.repetition, reward=trial.reward,
            seconds=trial.seconds, note=trial.note,
        )
        for trial in trials
    ]  # fmt: skip
    TaskTrial.objects.bulk_create(rows, batch_size=2000, ignore_conflicts=True)
    return lines[-1] if lines and not isinstance(lines[-1], TrialLine) else None


def _new_lines(version: TaskSetVersion) -> Iterator[Line]:
    """Whole lines behind what was read; what a job leaves half is none."""
    try:
        file = os.open(_folder(version) / CHECK_LOG, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LogUnreadable(str(error.strerror)) from error
    with open(file, "rb") as opened:
        opened.seek(version.log_bytes)
        while (line := opened.readline(_LONGEST_LINE)).endswith(b"\n"):
            version.log_bytes += len(line)
            try:
                yield CHECK_LINE.validate_json(line)
            except ValidationError as error:
                raise LogUnreadable(str(error.errors()[0]["msg"])) from error
        if len(line) >= _LONGEST_LINE:
            raise LogUnreadable(f"a line of more than {_LONGEST_LINE} bytes")
