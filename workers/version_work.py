"""What every task has to do that makes a version of the catalog: alone, with a heartbeat, to an end."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connection
from django.utils import timezone

from engine.disk import fsync
from engine.spec.problems import Problem
from webapp import queue
from webapp.catalog.models import UploadPart
from webapp.catalog.storage import upload_folder
from webapp.catalog.version_models import StoredVersion
from webapp.catalog.versions import refuse_beyond_room
from webapp.refusals import Refused
from workers.sources import SourceRefused

Version = TypeVar("Version", bound=StoredVersion)
MODEL_LOCK, DATASET_LOCK, TASKS_LOCK, MEASUREMENT_LOCK = 0x6D6F646C, 0x64617461, 0x7461736B, 0x6D656173
PACKAGE_LOCK = 0x7061636B

log = structlog.get_logger(__name__)


class Cancelled(Exception):
    """Somebody asked for it."""


@contextmanager
def alone(lock: int, row_id: int) -> Iterator[bool]:
    """Whether nobody else works for this row.  The lock goes with the connection if the process dies."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [lock, row_id])
        is_alone = cursor.fetchone()[0]
    try:
        yield is_alone
    finally:
        if is_alone:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [lock, row_id])


def carried_out(
    kind: type[Version],
    lock: int,
    version_id: str,
    progress_mark: str,
    *,
    next_step: Callable[[Version], None],
    clear: Callable[[Version], None],
    give_up: Callable[[Version, Problem], None],
) -> None:
    """Do what is next for the version, and send its message again where that was not the end.

    A late message, and a second one at the same time, do nothing; after a step that changed nothing ``reconcile`` sends
    the next one.
    """
    with alone(lock, int(version_id)) as is_alone:
        rows = kind._default_manager.select_related(f"{kind.of_family}__team")
        version = rows.filter(pk=int(version_id)).first() if is_alone else None
        if version is None or not version.is_unfinished or version.progress_mark != progress_mark:
            return
        try:
            next_step(version)
        except Cancelled:
            end(version, "cancelled")
            clear(version)
        except SourceRefused as refused:
            give_up(version, refused.problem)
        except (OSError, SoftTimeLimitExceeded) as error:
            give_up(version, out_of_order(version, error))
        version.refresh_from_db(fields=["state", "bytes_done"])
        if version.is_unfinished and version.progress_mark != progress_mark:
            queue.send(kind.store_message, version_id, version.progress_mark)


def announce(version: StoredVersion, size_bytes: int) -> None:
    """A tar's files, and a folder that has grown, are known only now."""
    if size_bytes > version.bytes:
        try:
            refuse_beyond_room(version.team, size_bytes - version.bytes)
        except Refused as refused:
            problem = refused.problems[0]
            raise SourceRefused(problem.field, str(problem.value), problem.message, problem.remedy) from refused
    if size_bytes != version.bytes:
        version.bytes = size_bytes
        version.save(update_fields=["bytes"])


def report_progress(version: StoredVersion, bytes_done: int) -> None:
    """Raises Cancelled where somebody has asked for it in the meantime."""
    version.bytes_done = bytes_done
    rows = type(version)._default_manager.filter(pk=version.pk)
    rows.update(bytes_done=bytes_done, heartbeat_at=timezone.now())
    if not rows.filter(cancel_asked=False).exists():
        raise Cancelled


def put_in_place(folder: Path, published: Path) -> None:
    """Another name of the team may have the same content, and share its folder."""
    if folder != published and not published.exists():
        for file in folder.rglob("*"):
            if file.is_file():
                file.chmod(file.stat().st_mode & 0o500)
        os.rename(folder, published)
        fsync(published.parent)


def fail(version: StoredVersion, problem: Problem) -> None:
    value = problem.value if isinstance(problem.value, int) else str(problem.value)[:500].replace("\0", "")
    kept = {"field": problem.field, "message": problem.message[:2000].replace("\0", ""), "remedy": problem.remedy}
    version.problem = kept | {"value": value}
    end(version, "failed")
    log.info("version failed", kind=type(version).__name__, version=version.pk, problem=kept["message"])


def out_of_order(version: StoredVersion, error: Exception) -> Problem:
    reason = error.strerror if isinstance(error, OSError) else "it took too long"
    return Problem("files", version.family.name, f"it could not be stored: {reason or error}", "try it again")


def end(version: StoredVersion, state: str) -> None:
    version.state, version.state_since = state, timezone.now()
    rows = type(version)._default_manager.filter(pk=version.pk, state__in=version.unfinished)
    rows.update(state=state, state_since=version.state_since, problem=version.problem)


def forget_upload(version: StoredVersion) -> None:
    """Remove the parts that a version was made of, which it needs no more."""
    if version.origin["kind"] == "upload":
        shutil.rmtree(upload_folder(version.origin["upload"]), ignore_errors=True)
        UploadPart.objects.filter(upload_id=version.origin["upload"]).delete()
