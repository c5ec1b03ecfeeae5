"""This module finds the files that a run reads beside its spec, and looks at them before it starts.

Tables of difficulty and teachers' trajectories are pinned to their content: a resumed run reads what its first attempt
read, because its checkpoint holds the digest, and another content is refused.  The files of supervised stages, which
may be large, are read through line by line; the run itself keeps their digests (``loop/state.py``).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from engine.launch.preflight import BadSpec
from engine.loop.checkpoint import CheckpointError, Checkpoints
from engine.loop.difficulty import file_sha256
from engine.rollout.stage_documents import check_line
from engine.spec.model import Model
from engine.spec.pinned_file import PinnedFile
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from engine.spec.supervised import Chat, Recordings, Stage, Text
from engine.training.examples import MOST_LINE_BYTES
from engine.training.recordings import BadRecording, check_digest, file_below, recorded_trajectories

PINNED_FIELDS = ("recipe.selection.difficulty.measured", "recipe.expert_starts.teacher")
"""The fields where a spec names files that are pinned."""


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
    named = {field: value for field in PINNED_FIELDS if isinstance(value := _at(spec, field), PinnedFile)}
    before = _spec_before(run_dir) if named else None
    for field, file in named.items():
        spec = _with(spec, field.split("."), _pinned(field, file, _at(before, field), files))
    return spec


def check_stage_files(spec: RunSpec, folder: Path) -> None:
    """Read the files of supervised stages through: every line has the form that its stage says.

    One line is held at a time; the files lie below ``folder``.  Whether a document fits into the model's context is
    found out by the run itself.  Raises BadSpec, which names file, line and field.
    """
    try:
        for number, stage in enumerate(spec.recipe.stages):
            _check_stage(number, stage, spec.model, folder)
    except BadRecording as error:
        raise BadSpec([str(error)]) from error


def _check_stage(number: int, stage: Stage, model: Model, folder: Path) -> None:
    if isinstance(stage.data, Recordings):
        recorded_trajectories(stage.data, model, folder)
    if isinstance(stage.data, Chat | Text):
        _check_lines(stage.data, folder, f"recipe.stages.{number}.data.file")


def _check_lines(data: Chat | Text, folder: Path, field: str) -> None:
    path = file_below(folder, data.file, field)
    check_digest(path, data.sha256, field)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES + 1), b""), start=1):
                _check_line(data, line, f"{path}", number)
    except OSError as error:
        raise BadRecording(f"{path}: cannot be read: {error.strerror}") from error


def _check_line(data: Chat | Text, line: bytes, path: str, number: int) -> None:
    if not line.strip():
        return
    if len(line) > MOST_LINE_BYTES:
        raise BadRecording(f"{path}, line {number}: is longer than {MOST_LINE_BYTES} bytes: one document a line")
    try:
        check_line(data, line.decode().rstrip("\r\n"), number)
    except UnicodeDecodeError as error:
        raise BadRecording(f"{path}, line {number}: is no UTF-8: {error.reason}") from error
    except ValueError as error:
        raise BadRecording(f"{path}: {error}") from error


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
