"""Importing a model from a folder of this server, below the one root from which anything is imported."""

from collections.abc import Iterator
from pathlib import Path

from django.conf import settings

from engine.spec.problems import Problem
from webapp.accounts.models import Team, User
from webapp.catalog.models import ModelVersion
from webapp.catalog.origin import FolderOrigin
from webapp.catalog.versions import begin_version
from webapp.refusals import Invalid

MOST_LISTED = 200
MOST_LEVELS = 3


def import_folder(team: Team, name: str, path: str, *, acting_user: User) -> ModelVersion:
    """Raises Invalid for a path that is no folder below the import root, and what ``begin_version`` raises."""
    folder = _below_root(path)
    try:
        size_bytes = sum(entry.stat().st_size for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        message = f"it cannot be read: {error.strerror}"
        raise Invalid.field("folder", path, message, "ask whoever runs the service to mend it") from error
    origin = FolderOrigin(path=str(folder.relative_to(_root())))
    return begin_version(team, name, origin, acting_user=acting_user, size_bytes=size_bytes)


def importable() -> list[str]:
    """Folders below the import root that hold a config.json, by their paths."""
    return sorted(_folders(_root(), MOST_LEVELS))[:MOST_LISTED]


def _folders(folder: Path, levels: int) -> Iterator[str]:
    try:
        inner = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except OSError:
        return  # a list leaves out what this process may not read; naming such a folder says why
    for path in inner[:MOST_LISTED]:
        if (path / "config.json").is_file() and path.resolve().is_relative_to(_root()):
            yield str(path.relative_to(_root()))
        elif levels > 1 and not path.is_symlink():
            yield from _folders(path, levels - 1)


def _root() -> Path:
    return Path(settings.PALESTRA_IMPORTS)


def _below_root(path: str) -> Path:
    """The folder, where symlinks lead.  What lies outside of the root is not told apart from what is not there."""
    try:
        folder = (_root() / path).resolve()
        inside = folder.is_relative_to(_root()) and folder != _root() and folder.is_dir()
    except (OSError, ValueError):
        inside = False
    if Path(path).is_absolute() or not inside:
        known = ", ".join(importable()[:5])
        remedy = f"use one of: {known}" if known else "ask whoever runs the service to put the model's folder there"
        message = "there is no such folder below the import root (PALESTRA_IMPORTS)"
        raise Invalid("the folder cannot be imported", [Problem("folder", path, message, remedy)])
    return folder
