"""Checkpoints on disk: complete or not there at all.

``<run dir>/checkpoints/step-000010/`` holds the learner's files, ``state.json`` and ``manifest.json``.  So does
``supervised-000200``, from the middle of the supervised stages; it goes once there is one of step 0.  A checkpoint is
written under another name, fsynced, and renamed; so one that bears its name was whole once, whoever was killed and
when.  Whether it still is, its manifest tells.

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
from engine.spec.impossible import AS_STORED

_NAME = re.compile(r"step-(\d{6,})")
_SUPERVISED = re.compile(r"supervised-(\d{6,})")
_STATE = "state.json"


class CheckpointError(Exception):
    """A checkpoint cannot be written or read; the message says which and why."""


def written_after(path: Path) -> str:
    """What the checkpoint was written after, e.g. ``step 10`` or ``supervised step 200``."""
    kind, _, number = path.name.partition("-")
    return f"{'step' if kind == 'step' else 'supervised step'} {int(number)}"


@dataclass(frozen=True, slots=True)
class Damaged:
    path: Path
    how: str
    """Which file, and what is the matter with it."""

    @property
    def after(self) -> str:
        return written_after(self.path)

    @property
    def aside(self) -> str:
        """The name of its folder once it is set aside."""
        return f"damaged-{self.path.name.removeprefix('step-')}"


@dataclass(slots=True)
class Found:
    """A checkpoint from which a run can go on."""

    state: RunState | None = None
    """It is that of the newest whole checkpoint; None: the run begins anew."""
    path: Path | None = None
    """Where that checkpoint lies."""
    verified: bool = False
    """Its files are what was written.  Unknown without a manifest."""
    damaged: list[Damaged] = field(default_factory=list)
    """Those that are newer, the newest first."""


class Checkpoints:
    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def run_dir(self) -> Path:
        """The folder in which that of the checkpoints stands."""
        return self._folder.parent

    def path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}"

    def path_of(self, state: RunState) -> Path:
        """Where the checkpoint of a state lies."""
        if state.cold_started:
            return self.path(state.finished_steps)
        return self._folder / f"supervised-{state.cold_start_steps:06d}"

    def steps(self) -> list[int]:
        """Those of the complete checkpoints, ascending."""
        return [number for number, _ in self._named(_NAME)]

    def _named(self, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
        """The complete checkpoints of one kind by their number, ascending."""
        matches = ((pattern.fullmatch(path.name), path) for path in self._folder.iterdir())
        return sorted((int(match[1]), path) for match, path in matches if match)

    def _complete(self) -> list[Path]:
        """All of them, the oldest first."""
        return [path for pattern in (_SUPERVISED, _NAME) for _, path in self._named(pattern)]

    def begin(self) -> Path:
        """An empty folder to write the next checkpoint into; remains of an interrupted one are removed."""
        partial = self._folder / "partial"
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir()
        return partial

    def complete(self, partial: Path, state: RunState) -> None:
        """Make ``partial`` the checkpoint of ``state``; only now remove those beyond ``keep``."""
        (partial / _STATE).write_text(state.model_dump_json())
        manifest.describe(partial)
        for path in (*partial.rglob("*"), partial):
            fsync(path)
        path = self.path_of(state)
        if path.exists():  # of an attempt that was resumed from further below
            self._remove(path)
        partial.rename(path)
        fsync(self._folder)
        supervised = self._named(_SUPERVISED)
        for _, superseded in supervised if state.cold_started else supervised[: -self._keep]:
            self._remove(superseded)
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
        for path in reversed(self._complete()):
            try:
                state = self._state_or_damage(path)
            except OSError as error:
                raise CheckpointError(f"{error.filename} cannot be read ({error.strerror})") from error
            if isinstance(state, RunState):
                found.state, found.path, found.verified = state, path, manifest.is_described(path)
                break
            found.damaged.append(Damaged(path, state))
        return found

    def set_aside(self, damaged: Damaged) -> Path:
        """From now on there is no such checkpoint; its files stay for whoever wants to look at them."""
        aside = self._folder / damaged.aside
        try:
            if aside.exists():
                shutil.rmtree(aside)
            damaged.path.rename(aside)
            fsync(self._folder)
        except OSError as error:
            raise CheckpointError(f"{damaged.path} is damaged and cannot be set aside: {error}") from error
        return aside

    def announced(self, step: int) -> bool:
        """Return whether the event of this checkpoint stands in the spool."""
        return (self.path(step) / "announced").exists()

    def mark_announced(self, step: int) -> None:
        (self.path(step) / "announced").touch()

    def _state_or_damage(self, folder: Path) -> RunState | str:
        described = manifest.is_described(folder)
        if described and (how := manifest.damage_in(folder)) is not None:
            return how
        try:
            return RunState.model_validate_json((folder / _STATE).read_bytes(), context=AS_STORED)
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
