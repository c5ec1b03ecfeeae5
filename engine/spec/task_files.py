"""The files of a stored version of a set of terminal tasks, and the manifest by whose SHA-256 the version is known.

    tasks.json      the manifest
    tasks/<name>/   a task in the form of Harbor, as it was read

Nothing is read or written here.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from engine.spec.strict import Strict

TASKS_MANIFEST = "tasks.json"
TASKS_FOLDER = "tasks"

TaskName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
TaskDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class TaskFileEntry(Strict):
    """A file of a task, by its path in the task's folder."""

    path: str = Field(min_length=1, max_length=4096)
    bytes: int = Field(ge=0)
    executable: bool


class StoredTaskEntry(Strict):
    """A task of the set."""

    name: TaskName
    digest: TaskDigest
    """The digest of names, permissions to execute and contents (``engine/environments/terminal/folder_files.py``)."""
    level: int = Field(ge=1, le=3)
    has_solution: bool
    needs_image: bool
    """Whether only an image of its own has what the task needs."""
    files: list[TaskFileEntry] = Field(min_length=1)
    folders: list[str]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class TaskManifest(Strict):
    """Equal tasks under equal names make equal text."""

    schema_version: Literal[1] = 1
    digest: TaskDigest
    """The digest of all tasks, by their names and digests."""
    tasks: list[StoredTaskEntry] = Field(min_length=1)
    """By name."""

    def text(self) -> str:
        """What ``tasks.json`` holds."""
        return self.model_dump_json(indent=1) + "\n"

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file but the manifest, by its path in the version's folder."""
        return {f"{TASKS_FOLDER}/{task.name}/{file.path}": file.bytes for task in self.tasks for file in task.files}

    @property
    def executables(self) -> frozenset[str]:
        return frozenset(
            f"{TASKS_FOLDER}/{task.name}/{file.path}" for task in self.tasks for file in task.files if file.executable
        )

    @property
    def folders(self) -> list[str]:
        """Those of the tasks, which may be empty."""
        return [f"{TASKS_FOLDER}/{task.name}/{folder}" for task in self.tasks for folder in task.folders]
