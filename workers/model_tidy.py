"""Removes files of the catalog that no row has any more: at once after a deletion, hourly what was left.

A folder without a row is removed only when it is old: a worker makes the folder before the row says so.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

from django.db import transaction
from django.utils import timezone

from webapp import queue
from webapp.accounts.models import Team
from webapp.catalog.models import DatasetState, DatasetVersion, ModelVersion, PackageVersion, TaskSetVersion, Upload
from webapp.catalog.storage import uploads_root
from webapp.catalog.uploads import KEPT_FOR, forget_old_uploads
from webapp.catalog.version_models import StoredVersion
from workers.app import app

OLD_S = 3600.0


@app.task(name=queue.REMOVE_MODEL)
def remove_model(team_id: str, sha256: str) -> None:
    """Remove the files of a content that no version of the team has."""
    _remove(ModelVersion, int(team_id), sha256)


@app.task(name=queue.REMOVE_DATASET)
def remove_dataset(team_id: str, sha256: str, version_id: str) -> None:
    """Remove the files of a deleted version: those that it was made of, and its content, if no other has it."""
    _remove_version(DatasetVersion, int(team_id), sha256, int(version_id))


@app.task(name=queue.REMOVE_TASKS)
def remove_tasks(team_id: str, sha256: str, version_id: str) -> None:
    """Remove the files of a deleted version, as those of a dataset."""
    _remove_version(TaskSetVersion, int(team_id), sha256, int(version_id))


@app.task(name=queue.REMOVE_PACKAGE)
def remove_package(team_id: str, sha256: str, version_id: str) -> None:
    """Remove the files of a deleted version, as those of a dataset."""
    _remove_version(PackageVersion, int(team_id), sha256, int(version_id))


def _remove_version(kind: type[StoredVersion], team_id: int, sha256: str, version_id: int) -> None:
    shutil.rmtree(kind.storage.partial_folder(team_id, version_id), ignore_errors=True)
    if sha256:
        _remove(kind, team_id, sha256)


def _remove(kind: type[StoredVersion], team_id: int, sha256: str) -> None:
    with transaction.atomic():
        # Under the lock under which versions become ready, so that none takes the folder over in between.
        Team.objects.select_for_update().filter(id=team_id).first()
        if _is_needed(kind, team_id, sha256):
            return
        folder = kind.storage.content_folder(team_id, sha256)
        removed = folder.with_name(f".removed-{uuid4()}")
        if folder.is_dir():
            folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _is_needed(kind: type[StoredVersion], team_id: int, sha256: str) -> bool:
    wanted = {"state__in": kind.keeps_content, f"{kind.of_family}__team": team_id}
    return kind._default_manager.filter(sha256=sha256, **wanted).exists()


def tidy_models() -> None:
    """Remove uploads that nobody went on with, and folders that nobody's row names."""
    forget_old_uploads()
    for folder in _old_in(uploads_root()):
        if not _is_wanted_upload(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
    give_up_old_sources()
    kinds: tuple[type[StoredVersion], ...] = (ModelVersion, DatasetVersion, TaskSetVersion, PackageVersion)
    for kind in kinds:
        for team in _folders_in(kind.storage.root):
            for folder in _old_in(team):
                _tidy(kind, team.name, folder)


def give_up_old_sources() -> None:
    """Files of datasets that have waited for a mapping, or for another one, as long as an upload is kept."""
    waiting = DatasetVersion.objects.filter(state__in=[DatasetState.MAPPING, DatasetState.FAILED])
    for version in waiting.filter(state_since__lt=timezone.now() - KEPT_FOR).exclude(source_report__isnull=True):
        given_up = DatasetVersion.objects.filter(id=version.id, state=version.state, state_since=version.state_since)
        state = DatasetState.CANCELLED if version.state == DatasetState.MAPPING else version.state
        if given_up.update(source_report=None, state=state):
            shutil.rmtree(version.partial_folder, ignore_errors=True)


def _folders_in(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from (path for path in root.iterdir() if path.is_dir())


def _old_in(root: Path) -> Iterator[Path]:
    return (path for path in _folders_in(root) if time.time() - path.stat().st_mtime >= OLD_S)


def _is_wanted_upload(name: str) -> bool:
    try:
        upload = (
            Upload.objects.select_related("version", "dataset_version", "task_version", "package_version")
            .filter(id=UUID(name))
            .first()
        )
    except ValueError:
        return False
    return upload is not None and (upload.completed_to is None or upload.completed_to.is_unfinished)


def _tidy(kind: type[StoredVersion], team: str, folder: Path) -> None:
    state, _, name = folder.name.rpartition("-")
    if state == ".partial":
        if not (name.isdecimal() and _keeps_partial_files(kind, int(name))):
            shutil.rmtree(folder, ignore_errors=True)
    elif folder.name.startswith(".removed-"):
        shutil.rmtree(folder, ignore_errors=True)
    elif team.isdecimal():
        _remove(kind, int(team), folder.name)


def _keeps_partial_files(kind: type[StoredVersion], version_id: int) -> bool:
    version = kind._default_manager.filter(pk=version_id).first()
    waits = isinstance(version, DatasetVersion) and version.may_be_prepared
    return version is not None and (version.is_unfinished or waits)
