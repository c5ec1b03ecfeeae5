"""Follows the checks of task sets and packages: a job on the cluster tries what is stored, and its log becomes rows.

    no job, no folder            -> the job file is written, with what is over, and the job submitted
    job alive                    -> new lines of its log become rows
    its log ends with "done"     -> stored; whoever looks sees what was found
                "refused"          -> stored, with everything that it needs and these sandboxes do not give
                "unavailable"    -> waits, says why, and goes on with what is left after ``WAIT``
    job over without a last line -> another job goes on with what is left, ``MOST_JOBS`` in all
    cancelled                    -> stored, and the job is stopped

What is tried is hostile and runs in sandboxes, which the workers' process must not make: it knows the database
(docs/decisions/0008-sandboxes-inside-the-ray-container.md).  What the job writes is believed as far as it can be read.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import uuid4

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from pydantic import TypeAdapter, ValidationError

from engine.disk import write_durably
from engine.spec.check_log import CHECK_LOG, JOB_FILE, DoneLine, RefusedLine, UnavailableLine
from engine.spec.problems import Problem
from engine.spec.strict import Strict
from webapp.catalog.checked_models import CheckedState, CheckedVersion
from workers.ray_jobs import Job, Jobs, RayUnreachable, engine_command

Version = TypeVar("Version", bound=CheckedVersion)
WAIT = timedelta(seconds=60)
"""Before sandboxes that could not be made are asked for again."""
MOST_JOBS = 3
_LONGEST_LINE = 2**22
LAST_LINES = (RefusedLine, UnavailableLine, DoneLine)

log = structlog.get_logger(__name__)


class LogUnreadable(Exception):
    """A line of a check's log is none."""


@dataclass(frozen=True)
class Check(Generic[Version]):
    """How versions of a kind are checked."""

    kind: type[Version]
    command: Sequence[str]
    """The engine's verb, which takes the job file."""
    lines: TypeAdapter[Any]
    """A line of the log."""
    job: Callable[[Version], Strict]
    """What the job file holds.  Raises OSError where the files are not here."""
    keep: Callable[[Version, Sequence[Any]], None]
    """Turns new lines into rows.  Raises LogUnreadable for one that cannot be meant."""

    def follow_all(self, jobs: Jobs) -> None:
        """Raises RayUnreachable."""
        for version in self.kind._default_manager.filter(state=CheckedState.CHECKING).order_by("pk"):
            self.follow(version, jobs)

    def follow(self, version: Version, jobs: Jobs) -> None:
        """Do what is next for the version's check.  Raises RayUnreachable."""
        # First the job, then its log: one that has ended by then has written everything that it ever will.
        job = jobs.all().get(version.submission_id)
        with transaction.atomic():
            rows = self.kind._default_manager.select_for_update(of=("self",))
            rows = rows.select_related(f"{version.of_family}__team")
            locked = rows.filter(pk=version.pk, state=CheckedState.CHECKING, check_id=version.check_id).first()
            if locked is None:
                return
            locked.heartbeat_at = timezone.now()
            is_due = self._followed(locked, job)
            locked.save()
        if is_due:
            self._begin_job(locked, jobs)
        elif locked.state != CheckedState.CHECKING and job is not None and job.state == "alive":
            jobs.stop(version.submission_id)

    def _followed(self, version: Version, job: Job | None) -> bool:
        """Bring the row up to date; return whether a job is to be submitted for it."""
        if version.cancel_asked:
            _end(version)
            return False
        if job is None and not _folder(version).is_dir():
            return not version.waiting_for or timezone.now() - version.waiting_since >= WAIT
        try:
            last = self._read(version)
        except LogUnreadable as error:
            _end(version, Problem("check", "", f"the check wrote what cannot be read: {error}", "check it again"))
            return False
        if last is None and job is not None and job.state == "alive":
            version.waiting_for = ""
            return False
        return _ended(version, job, last)

    def _begin_job(self, version: Version, jobs: Jobs) -> None:
        """Raises RayUnreachable, after which nothing of the job is left; without the version's files the check ends."""
        try:
            self._submit(version, jobs)
        except RayUnreachable:
            shutil.rmtree(_folder(version), ignore_errors=True)
            raise
        except OSError as error:
            log.exception("a check cannot be begun", version=version.pk)
            message = f"its files cannot be read: {error.strerror or error}"
            problem = Problem("check", "", message, "bring them again, as another version")
            rows = self.kind._default_manager.filter(pk=version.pk, check_id=version.check_id)
            rows.update(state=CheckedState.STORED, state_since=timezone.now(), problem=problem.as_dict())
            shutil.rmtree(_folder(version), ignore_errors=True)

    def _submit(self, version: Version, jobs: Jobs) -> None:
        folder = _folder(version)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(folder / JOB_FILE, self.job(version).model_dump_json().encode())
        jobs.submit(version.submission_id, engine_command(*self.command, str(folder / JOB_FILE)))

    def _read(self, version: Version) -> Any:
        """Keep what is new in the log; return the line that ends it, if it is there.  Raises LogUnreadable."""
        lines = list(self._new_lines(version))
        self.keep(version, [line for line in lines if not isinstance(line, LAST_LINES)])
        return lines[-1] if lines and isinstance(lines[-1], LAST_LINES) else None

    def _new_lines(self, version: Version) -> Iterator[Any]:
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
                    yield self.lines.validate_json(line)
                except ValidationError as error:
                    raise LogUnreadable(str(error.errors()[0]["msg"])) from error
            if len(line) >= _LONGEST_LINE:
                raise LogUnreadable(f"a line of more than {_LONGEST_LINE} bytes")


def _ended(version: CheckedVersion, job: Job | None, last: Any) -> bool:
    match last:
        case DoneLine():
            _end(version)
        case RefusedLine(problems=problems):
            version.problems, version.faults = [problem.model_dump() for problem in problems], len(problems)
            message = f"{len(problems)} of its needs are not met here"
            _end(version, Problem("check", len(problems), message, "choose other settings, or change it"))
        case UnavailableLine(reason=reason):
            version.waiting_for, version.waiting_since = reason, timezone.now()
            _leave(version)
        case _:
            return _died(version, job)
    return False


def _died(version: CheckedVersion, job: Job | None) -> bool:
    """Whether another job goes on with what is left."""
    version.check_jobs += 1
    why = "its job is gone: the cluster was restarted" if job is None else f"its job died: {job.last_words}"
    log.warning("a check's job has died", version=version.pk, why=why)
    if version.check_jobs >= MOST_JOBS:
        _end(version, Problem("check", version.check_jobs, why, "check it again; ask whoever runs the service"))
        return False
    _leave(version)
    return True


def _end(version: CheckedVersion, problem: Problem | None = None) -> None:
    version.state, version.state_since = CheckedState.STORED, timezone.now()
    version.cancel_asked, version.waiting_for = False, ""
    version.problem = None if problem is None else problem.as_dict()
    _leave(version)


def _leave(version: CheckedVersion) -> None:
    """Nobody reads the job's folder any more; another job has another one."""
    folder = _folder(version)
    version.check_id, version.log_bytes = uuid4(), 0
    transaction.on_commit(lambda: shutil.rmtree(folder, ignore_errors=True))


def _folder(version: CheckedVersion) -> Path:
    return Path(settings.PALESTRA_RUNS) / f"{version.checked_as}s" / str(version.check_id)
