"""Checkpoints on disk: complete or not there at all.

``<run dir>/checkpoints/step-000010/`` holds the learner's files and ``state.json``.  A checkpoint
is written under another name, fsynced, and renamed; so the highest one that bears its name is
whole, whoever was killed and when.
"""

import os
import re
import shutil
from pathlib import Path

from pydantic import ValidationError

from engine.control.state import RunState

_NAME = re.compile(r"step-(\d{6,})")


class CheckpointError(Exception):
    """A checkpoint cannot be written or read; the message says which and why."""


class Checkpoints:
    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

    def steps(self) -> list[int]:
        """Those of the complete checkpoints, ascending."""
        matches = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def begin(self) -> Path:
        """An empty folder to write the next checkpoint into; remains of an interrupted one are removed."""
        partial = self._folder / "partial"
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        return partial

    def complete(self, partial: Path, state: RunState) -> None:
        """Make ``partial`` the checkpoint of ``state.finished_steps``; only now remove those beyond ``keep``."""
        (partial / "state.json").write_text(state.model_dump_json())
        _sync_tree(partial)
        path = self.path(state.finished_steps)
        if path.exists():  # of an attempt that was resumed from further below
            shutil.rmtree(path)
        partial.rename(path)
        _sync(self._folder)
        for step in self.steps()[: -self._keep]:
            shutil.rmtree(self.path(step))

    def size_bytes(self, step: int) -> int:
        return sum(file.stat().st_size for file in self.path(step).rglob("*") if file.is_file())

    def amend(self, state: RunState) -> None:
        """Replace the state of an existing checkpoint, e.g. because its weights have been evaluated since."""
        path = self.path(state.finished_steps) / "state.json"
        partial = path.with_name("state.json.partial")
        partial.write_text(state.model_dump_json())
        _sync(partial)
        partial.rename(path)
        _sync(path.parent)

    def latest(self) -> RunState | None:
        """The state of the highest checkpoint; those beyond a readable one do not exist.

        A checkpoint whose state cannot be read is a fault of the disk, not of a kill: it is an error.
        """
        steps = self.steps()
        if not steps:
            return None
        path = self.path(steps[-1]) / "state.json"
        try:
            return RunState.model_validate_json(path.read_bytes())
        except OSError as error:
            raise _unreadable(path, error.strerror) from error
        except ValidationError as error:
            raise _unreadable(path, error.errors(include_input=False)[0]["msg"]) from error

    def announced(self, step: int) -> bool:
        """Whether the event of this checkpoint stands in the spool."""
        return (self.path(step) / "announced").exists()

    def mark_announced(self, step: int) -> None:
        (self.path(step) / "announced").touch()


def _unreadable(path: Path, why: str | None) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read ({why}); remove {path.parent} to go on from the checkpoint before it"
    )


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
