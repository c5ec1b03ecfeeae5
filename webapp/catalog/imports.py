"""Importing a model, a dataset, tasks or a package from a folder of this server, below the one root that is for it."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from django.conf import settings

from engine.spec.dataset_preparation import Preparation
from engine.spec.package_check import PackageCheck
from engine.spec.problems import Problem
from engine.spec.strict import Strict
from engine.spec.task_check import TaskCheck
from webapp.accounts.models import Team, User
from webapp.catalog.checked_models import CheckedVersion
from webapp.catalog.checked_versions import begin_checked
from webapp.catalog.dataset_file_names import SUFFIXES
from webapp.catalog.dataset_versions import begin_dataset
from webapp.catalog.models import DatasetVersion, ModelVersion, PackageVersion, TaskSetVersion
from webapp.catalog.origin import FolderOrigin
from webapp.catalog.package_versions import PACKAGE_FILES
from webapp.catalog.task_versions import TASKS_FILES
from webapp.catalog.versions import begin_version
from webapp.refusals import Invalid

Checked = TypeVar("Checked", bound=CheckedVersion)
MOST_LISTED = 200
MOST_LEVELS = 3
MOST_COUNTED = 50_000
TASK_FILE = "task.toml"


def import_folder(team: Team, name: str, path: str, *, acting_user: User) -> ModelVersion:
    """Raises Invalid for a path that is no folder below the import root, and what ``begin_version`` raises."""
    folder = _below_root(path, holds_model, "folder")
    try:
        size_bytes = sum(entry.stat().st_size for entry in folder.iterdir() if entry.is_file())
    except OSError as error:
        raise _unreadable(path, error) from error
    origin = FolderOrigin(path=str(folder.relative_to(_root())))
    return begin_version(team, name, origin, acting_user=acting_user, size_bytes=size_bytes)


def import_dataset(
    team: Team, name: str, path: str, preparation: Preparation | None = None, *, acting_user: User
) -> DatasetVersion:
    """Import a folder's files, or one file.  Raises Invalid for a path that is neither below the import root, and what
    ``begin_dataset`` raises."""
    found = _below_root(path, holds_rows, "file or folder")
    try:
        files = [found] if found.is_file() else [entry for entry in found.iterdir() if entry.is_file()]
        size_bytes = sum(file.stat().st_size for file in files if file.name.lower().endswith(SUFFIXES))
    except OSError as error:
        raise _unreadable(path, error) from error
    origin = FolderOrigin(path=str(found.relative_to(_root())))
    return begin_dataset(
        team, name, origin, acting_user=acting_user, size_bytes=size_bytes, preparation=preparation
    )  # fmt: skip


def import_tasks(
    team: Team, name: str, path: str, check: TaskCheck | None = None, *, acting_user: User
) -> TaskSetVersion:
    """Import a folder of tasks, a tar of one, or rows of a SWE-bench form.  Raises Invalid for a path that is none of
    them below the import root, and what ``begin_checked`` raises."""
    found = _below_root(path, holds_tasks, "file or folder")
    return _import_checked(TaskSetVersion, team, name, found, check, acting_user)


def import_package(
    team: Team, name: str, path: str, check: PackageCheck | None = None, *, acting_user: User
) -> PackageVersion:
    """Import an environment package: its folder, a tar of one, or a wheel.  Raises Invalid for a path that is none of
    them below the import root, and what ``begin_checked`` raises."""
    found = _below_root(path, holds_package, "file or folder")
    return _import_checked(PackageVersion, team, name, found, check, acting_user)


def _import_checked(
    kind: type[Checked], team: Team, name: str, found: Path, check: Strict | None, acting_user: User
) -> Checked:
    try:
        size_bytes = _bytes_below(found)
    except OSError as error:
        raise _unreadable(str(found.relative_to(_root())), error) from error
    origin = FolderOrigin(path=str(found.relative_to(_root())))
    return begin_checked(kind, team, name, origin, acting_user=acting_user, size_bytes=size_bytes, check=check)


def _bytes_below(path: Path) -> int:
    """The size of the files that are there now, of so many as are counted; what is more is found when they are
    stored."""
    if path.is_file():
        return path.stat().st_size
    found = (entry for entry in islice(path.rglob("*"), MOST_COUNTED) if entry.is_file() and not entry.is_symlink())
    return sum(entry.stat().st_size for entry in found)


def _unreadable(path: str, error: OSError) -> Invalid:
    message = f"it cannot be read: {error.strerror}"
    return Invalid.field("folder", path, message, "ask whoever runs the service to mend it")


def holds_model(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def holds_rows(folder: Path) -> bool:
    """Whether it is a file of a dataset, or a folder with one."""
    return _is_dataset_file(folder) or (folder.is_dir() and any(map(_is_dataset_file, islice(folder.iterdir(), 1000))))


def holds_tasks(path: Path) -> bool:
    """Whether it is a folder of terminal tasks, a task, or a package of such."""
    if path.is_file():
        return path.name.lower().endswith(TASKS_FILES)
    inside = (entry / TASK_FILE for entry in islice(path.iterdir(), 1000))
    return (path / TASK_FILE).is_file() or any(entry.is_file() for entry in inside)


def holds_package(path: Path) -> bool:
    """Whether it is a folder of an environment package, a tar of one, or a wheel."""
    if path.is_file():
        return path.name.lower().endswith(PACKAGE_FILES)
    return (path / "pyproject.toml").is_file() and (path / "src").is_dir()


def _is_dataset_file(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES) and path.is_file()


def importable(holds: Callable[[Path], bool] = holds_model) -> list[str]:
    """Folders below the import root that hold a config.json, or what else is asked for, by their paths."""
    return sorted(_folders(_root(), MOST_LEVELS, holds))[:MOST_LISTED]


def _folders(folder: Path, levels: int, holds: Callable[[Path], bool]) -> Iterator[str]:
    try:
        inner = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except OSError:
        return  # a list leaves out what this process may not read; naming such a folder says why
    for path in inner[:MOST_LISTED]:
        if holds(path) and path.resolve().is_relative_to(_root()):
            yield str(path.relative_to(_root()))
        elif levels > 1 and not path.is_symlink():
            yield from _folders(path, levels - 1, holds)


def _root() -> Path:
    return Path(settings.PALESTRA_IMPORTS)


def _below_root(path: str, holds: Callable[[Path], bool], what: str) -> Path:
    """The folder, or the file where one may be named, where symlinks lead.

    What lies outside of the root is not told apart from what is not there.
    """
    try:
        folder = (_root() / path).resolve()
        inside = folder.is_relative_to(_root()) and folder != _root()
        inside = inside and (folder.is_dir() or (what != "folder" and folder.is_file()))
    except (OSError, ValueError):
        inside = False
    if Path(path).is_absolute() or not inside:
        known = ", ".join(importable(holds)[:5])
        remedy = f"use one of: {known}" if known else "ask whoever runs the service to put it there"
        message = f"there is no such {what} below the import root (PALESTRA_IMPORTS)"
        raise Invalid(f"the {what} cannot be imported", [Problem("folder", path, message, remedy)])
    return folder
