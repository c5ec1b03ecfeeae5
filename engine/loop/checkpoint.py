"""Checkpoints on disk: complete or not there at all.

``<run dir>/checkpoints/step-000010/`` holds the learner's files, ``state.json`` and ``manifest.json``.  A
checkpoint is written under another name, fsynced, and renamed; so one that bears its name was whole
once, whoever was killed and when.  Whether it still is, its manifest tells.

One that is damaged is set aside as ``damaged-000010``, and the run goes on from the newest whole one
before it.  A checkpoint without a manifest is of an earlier version of Palestra: it counts as whole
as long as it can be read.
"""

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from engine.disk import fsync
from engine.loop import manifest
from engine.loop.state import RunState

_NAME = re.compile(r"step-(\d{6,})")
_STATE = "state.json"


class CheckpointError(Exception):
    """A checkpoint cannot be written or read; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Damaged:
    step: int
    how: str
    """Which file, and what is the matter with it."""


@dataclass(slots=True)
class Found:
    """A checkpoint from which a run can go on."""

    state: RunState | None = None
    """It is that of the newest whole checkpoint; None: the run begins anew."""
    verified: bool = False
    """Its files are what was written.  Unknown without a manifest."""
    damaged: list[Damaged] = field(default_factory=list)
    """Those that are newer, the newest first."""


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
        (partial / _STATE).write_text(state.model_dump_json())
        manifest.describe(partial)
        for path in (*partial.rglob("*"), partial):
            fsync(path)
        path = self.path(state.finished_steps)
        if path.exists():  # of an attempt that was resumed from further below
            self._remove(path)
        partial.rename(path)
        fsync(self._folder)
        for step in self.steps()[: -self._keep]:
            self._remove(self.path(step))

    def size_bytes(self, step: int) -> int:
        return sum(file.stat().st_size for file in self.path(step).rglob("*") if file.is_file())

    def amend(self, state: RunState) -> None:
        """Replace the state of an existing checkpoint, e.g. because its weights have been evaluated since."""
        manifest.replace(self.path(state.finished_steps), _STATE, state.model_dump_json().encode())

    def newest(self) -> Found:
        """Look for the newest whole checkpoint; changes nothing.

        Raises CheckpointError where it is not the disk's fault that one cannot be read.
        """
        found = Found()
        for step in reversed(self.steps()):
            try:
                state = self._state_or_damage(step)
            except OSError as error:
                raise CheckpointError(f"{error.filename} cannot be read ({error.strerror})") from error
            if isinstance(state, RunState):
                found.state, found.verified = state, manifest.is_described(self.path(step))
                break
            found.damaged.append(Damaged(step, state))
        return found

    def set_aside(self, step: int) -> Path:
        """From now on ``step`` has no checkpoint; its files stay for whoever wants to look at them."""
        aside = self._folder / f"damaged-{step:06d}"
        try:
            if aside.exists():
                shutil.rmtree(aside)
            self.path(step).rename(aside)
            fsync(self._folder)
        except OSError as error:
            raise CheckpointError(f"{self.path(step)} is damaged and cannot be set aside: {error}") from error
        return aside

    def announced(self, step: int) -> bool:
        """Return whether the event of this checkpoint stands in the spool."""
        return (self.path(step) / "announced").exists()

    def mark_announced(self, step: int) -> None:
        (self.path(step) / "announced").touch()

    def _state_or_damage(self, step: int) -> RunState | str:
        folder = self.path(step)
        described = manifest.is_described(folder)
        if described and (how := manifest.damage_in(folder)) is not None:
            return how
        try:
            return RunState.model_validate_json((folder / _STATE).read_bytes())
        except OSError as error:
            return manifest.spoilt(_STATE, error)
        except ValidationError as error:
            how = f"{_STATE} cannot be read ({error.errors(include_input=False)[0]['msg']})"
            if described:
                raise CheckpointError(
                    f"{folder}: {how}, although it is what was written: by another version of Palestra?"
                ) from error
            return how

    def _remove(self, path: Path) -> None:
        """Killed half-way, it leaves nothing that looks like a checkpoint."""
        removed = self._folder / "removed"
        if removed.exists():
            shutil.rmtree(removed)
        path.rename(removed)
        shutil.rmtree(removed)
