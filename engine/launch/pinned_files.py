"""Files that a run reads beside its spec, found and pinned to their content before it starts.

A resumed run reads what its first attempt read: its checkpoint holds the digest, and another content is refused.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from engine.launch.preflight import BadSpec
from engine.loop.checkpoint import CheckpointError, Checkpoints
from engine.loop.difficulty import file_sha256
from engine.spec.pinned_file import PinnedFile
from engine.spec.problems import Problem
from engine.spec.run import RunSpec

FIELDS = ("recipe.selection.difficulty.measured", "recipe.expert_starts.teacher")
"""Where a spec names such files."""


@dataclass(frozen=True, slots=True)
class FileFolder:
    """Where files that a spec names lie."""

    folder: Path
    anywhere: bool
    """Whether a path may lead out of it: on the command line, whose user may read what she may read."""

    def found(self, field: str, named: PinnedFile) -> Path:
        """The file, links followed.  Raises BadSpec unless it is a regular file that the run may name."""
        root = self.folder.resolve()
        try:
            path = (root / named.file).resolve()
            regular = path.is_file()
        except OSError as error:
            raise _refused(field, named.file[:80], f"{error.strerror} in {root}", "give the path of a file") from error
        if not self.anywhere and not path.is_relative_to(root):
            raise _refused(field, named.file, f"leads out of {root}", "give the path of a file in it")
        if not regular:
            raise _refused(field, named.file, f"there is no such file in {root}", "give the path of a file in it")
        return path


def with_pinned_files(spec: RunSpec, run_dir: Path | None, files: FileFolder) -> RunSpec:
    """The spec with absolute paths and digests of what the run in ``run_dir`` read, or of what stands there now.

    Raises BadSpec.
    """
    named = {field: value for field in FIELDS if isinstance(value := _at(spec, field), PinnedFile)}
    before = _spec_before(run_dir) if named else None
    for field, file in named.items():
        spec = _with(spec, field.split("."), _pinned(field, file, _at(before, field), files))
    return spec


def _pinned(field: str, named: PinnedFile, before: Any, files: FileFolder) -> PinnedFile:
    path = files.found(field, named)
    try:
        found = file_sha256(path)
    except OSError as error:
        raise _refused(field, str(path), f"it cannot be read: {error.strerror}", "make it readable") from error
    wanted = named.sha256 or (before.sha256 if isinstance(before, PinnedFile) else None)
    if wanted not in (None, found):
        whose = "the spec names" if named.sha256 else "this run began with"
        problem = f"its content (SHA-256 {found[:12]}...) is not what {whose} ({wanted[:12]}...)"
        raise _refused(field, str(path), problem, "put that file back, or start another run")
    return PinnedFile(file=str(path), sha256=found)


def _spec_before(run_dir: Path | None) -> RunSpec | None:
    folder = None if run_dir is None else run_dir / "checkpoints"
    if folder is None or not folder.is_dir():
        return None
    try:
        state = Checkpoints(folder, keep=1).newest().state
    except (OSError, CheckpointError) as error:
        raise BadSpec([f"{run_dir}: {error}"]) from error
    return None if state is None else state.spec


def _at(document: Any, field: str) -> Any:
    for name in field.split("."):
        document = getattr(document, name, None)
    return document


def _with(document: BaseModel, path: list[str], value: PinnedFile) -> Any:
    name, *below = path
    return document.model_copy(update={name: _with(getattr(document, name), below, value) if below else value})


def _refused(field: str, value: str, message: str, remedy: str) -> BadSpec:
    return BadSpec([str(Problem(field, value, message, remedy))])
