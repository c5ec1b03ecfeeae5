"""From what a set of tasks is made of to its folder: stored piece by piece, read by the engine, kept by its content.

    importing   an upload's file comes into ``importing/`` of the partial folder; a server's folder stays where it is
    reading     the engine unpacks and reads everything as hostile input, and seals it or names all faults
    stored      the folder has its name, which is the SHA-256 of its manifest; no run may name it yet
    checking    a job on the cluster tries every task (``workers/task_checks.py``)
    ready       somebody has published it, which the service refuses until every task is ``ok``

What reads the files is a process of its own (``python -m engine.environments.terminal``), with bounded memory and time.
A kill -9 leaves rows for which nobody does anything; ``reconcile`` sends their messages again, and the work goes on.
"""

import hashlib
import shutil
import time
from functools import partial
from pathlib import Path

import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from engine.spec.problems import Problem
from engine.spec.task_check import TasksReport
from engine.spec.task_files import TASKS_MANIFEST, TaskManifest
from webapp import queue
from webapp.accounts.models import Team
from webapp.catalog.models import StoredTask, TaskSetState, TaskSetVersion
from webapp.catalog.origin import FolderOrigin
from webapp.catalog.task_versions import begin_check
from workers import ray_jobs
from workers.app import app
from workers.engine_process import EngineFailed, output_of
from workers.ray_jobs import RayUnreachable
from workers.sources import SourceRefused, task_files
from workers.stored_pieces import store_pieces
from workers.task_checks import follow_check
from workers.version_work import (
    TASKS_LOCK,
    Cancelled,
    announce,
    carried_out,
    fail,
    forget_upload,
    put_in_place,
    report_progress,
)

SLICE_S = 20.0
"""How long a task stores pieces before others have their turn."""
READ_S, READER_BYTES = 170.0, 2 * 2**30
"""What reading all tasks may take: time by the clock, and address space."""

log = structlog.get_logger(__name__)


@app.task(name=queue.STORE_TASKS, soft_time_limit=200, time_limit=240)
def store_tasks(version_id: str, progress_mark: str) -> None:
    """Do what is next for the version.  A late message, and a second one at the same time, do nothing."""
    carried_out(
        TaskSetVersion, TASKS_LOCK, version_id, progress_mark, next_step=_next_step, clear=_clear, give_up=_fail
    )  # fmt: skip


def _next_step(version: TaskSetVersion) -> None:
    """Raises SourceRefused and Cancelled."""
    if version.state == TaskSetState.CHECKING:
        _follow(version)
    elif version.cancel_asked:
        raise Cancelled
    elif version.state == TaskSetState.IMPORTING:
        _import(version)
    else:
        _read(version)


def _follow(version: TaskSetVersion) -> None:
    try:
        follow_check(version, ray_jobs.connect())
    except RayUnreachable as error:
        log.warning("Ray cannot be reached; reconcile follows the check", version=version.pk, error=str(error))


def _import(version: TaskSetVersion) -> None:
    files = task_files(version)
    if files:
        announce(version, sum(file.size for file in files))
        report = partial(report_progress, version)
        folder = version.partial_folder / "importing"
        if not store_pieces(folder, files, until=time.monotonic() + SLICE_S, report=report):
            return
        forget_upload(version)
    else:
        version.partial_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = timezone.now()
    rows = TaskSetVersion.objects.filter(id=version.id, state=TaskSetState.IMPORTING)
    rows.update(state=TaskSetState.READING, state_since=now, heartbeat_at=now, bytes_done=0)


def _read(version: TaskSetVersion) -> None:
    """Raises SourceRefused where the tasks have faults, after they are kept."""
    TaskSetVersion.objects.filter(id=version.id).update(heartbeat_at=timezone.now())
    report = _engine_report(version)
    if report.faults:
        version.faults, version.problems = report.faults, [problem.model_dump() for problem in report.problems]
        version.save(update_fields=["faults", "problems"])
        first = report.problems[0]
        more = f"; and {report.faults - 1} more faults" if report.faults > 1 else ""
        raise SourceRefused(
            "files", str(report.faults), f"{first.field}: {first.message}{more}", "mend them and try again"
        )
    _keep(version)


def _engine_report(version: TaskSetVersion) -> TasksReport:
    """What the engine says of the tasks, in a process that may die of them.  Raises SourceRefused if it does."""
    target = version.partial_folder
    arguments = ["engine.environments.terminal", str(_source(version)), str(target)]
    try:
        return TasksReport.model_validate_json(output_of(arguments, seconds=READ_S, most_bytes=READER_BYTES))
    except EngineFailed as failed:
        how = str(failed)
    except ValidationError:
        how = "failed: it printed no report"
    raise SourceRefused("files", "", f"reading the tasks {how}", "divide the set, and look for enormous files")


def _source(version: TaskSetVersion) -> Path:
    match version.made_from:
        case FolderOrigin(path=path) if (folder := Path(settings.PALESTRA_IMPORTS) / path).is_dir():
            return folder
        case _:
            stored = version.partial_folder / "importing"
            return next(file for file in stored.iterdir() if not file.name.startswith("."))


def _keep(version: TaskSetVersion) -> None:
    """Give the tasks their folder and rows, unless the set has the content already."""
    sealed = version.partial_folder / "sealed"
    text = (sealed / TASKS_MANIFEST).read_bytes()
    manifest = TaskManifest.model_validate_json(text)
    announce(version, sum(manifest.sizes.values()) + len(text))
    with transaction.atomic():
        Team.objects.select_for_update().get(id=version.task_set.team_id)
        rows = TaskSetVersion.objects.select_for_update(of=("self",)).select_related("task_set__team")
        version = rows.get(id=version.id)
        if version.cancel_asked:
            raise Cancelled
        version.sha256 = hashlib.sha256(text).hexdigest()
        version.state_since = timezone.now()
        same = version.task_set.versions.filter(sha256=version.sha256, state__in=_KEPT).first()
        if same is not None:
            version.same_as, version.state = same, TaskSetState.SAME
            version.save()
        else:
            put_in_place(sealed, version.folder)
            _write_rows(version, manifest)
            version.state, version.bytes_done = TaskSetState.STORED, version.bytes
            version.save()
            if (check := version.check_wanted) is not None:
                begin_check(version, check)
    _clear(version)


_KEPT = TaskSetVersion.keeps_content - {TaskSetState.IMPORTING, TaskSetState.READING}


def _write_rows(version: TaskSetVersion, manifest: TaskManifest) -> None:
    rows = [
        StoredTask(
            version=version, name=task.name, digest=task.digest, level=task.level, has_solution=task.has_solution,
            needs_image=task.needs_image, bytes=task.bytes,
        )
        for task in manifest.tasks
    ]  # fmt: skip
    StoredTask.objects.bulk_create(rows, batch_size=2000)


def _fail(version: TaskSetVersion, problem: Problem) -> None:
    fail(version, problem)
    _clear(version)


def _clear(version: TaskSetVersion) -> None:
    """Remove what the version needs no more."""
    shutil.rmtree(version.partial_folder, ignore_errors=True)
    forget_upload(version)
