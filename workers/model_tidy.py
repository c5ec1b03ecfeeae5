"""Removes files of models that no row has any more: at once after a version was deleted, and hourly what was left.

A folder without a row is removed only when it is old: a worker makes the folder before the row says so.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

from django.db import transaction

from webapp import queue
from webapp.accounts.models import Team
from webapp.catalog.models import UNFINISHED, ModelVersion, Upload, VersionState
from webapp.catalog.storage import catalog_root, content_folder, uploads_root
from webapp.catalog.uploads import forget_old_uploads
from workers.app import app

OLD_S = 3600.0


@app.task(name=queue.REMOVE_MODEL)
def remove_model(team_id: str, sha256: str) -> None:
    """Remove the files of a content that no version of the team has."""
    with transaction.atomic():
        # Under the lock under which versions become ready, so that none takes the folder over in between.
        Team.objects.select_for_update().filter(id=int(team_id)).first()
        if _is_needed(int(team_id), sha256):
            return
        folder = content_folder(int(team_id), sha256)
        removed = folder.with_name(f".removed-{uuid4()}")
        if folder.is_dir():
            folder.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _is_needed(team_id: int, sha256: str) -> bool:
    states = UNFINISHED | {VersionState.READY}
    return ModelVersion.objects.filter(model__team=team_id, sha256=sha256, state__in=states).exists()


def tidy_models() -> None:
    """Remove uploads that nobody went on with, and folders that nobody's row names."""
    forget_old_uploads()
    for folder in _old_in(uploads_root()):
        if not _is_wanted_upload(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
    for team in _folders_in(catalog_root()):
        for folder in _old_in(team):
            _tidy(team.name, folder)


def _folders_in(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from (path for path in root.iterdir() if path.is_dir())


def _old_in(root: Path) -> Iterator[Path]:
    return (path for path in _folders_in(root) if time.time() - path.stat().st_mtime >= OLD_S)


def _is_wanted_upload(name: str) -> bool:
    try:
        upload = Upload.objects.select_related("version").filter(id=UUID(name)).first()
    except ValueError:
        return False
    return upload is not None and (upload.version is None or upload.version.is_unfinished)


def _tidy(team: str, folder: Path) -> None:
    kind, _, name = folder.name.rpartition("-")
    if kind == ".partial":
        if not (name.isdecimal() and ModelVersion.objects.filter(id=int(name), state__in=UNFINISHED).exists()):
            shutil.rmtree(folder, ignore_errors=True)
    elif folder.name.startswith(".removed-"):
        shutil.rmtree(folder, ignore_errors=True)
    elif team.isdecimal():
        remove_model(team, folder.name)
