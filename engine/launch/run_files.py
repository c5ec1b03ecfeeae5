"""This module finds the files that a run reads beside its spec, and looks at them before it starts.

Tables of difficulty and teachers' trajectories are pinned to their content: a resumed run reads what its first attempt
read, because its checkpoint holds the digest, and another content is refused.  The files of supervised stages, which
may be large, are read through line by line; the run itself keeps their digests (``loop/state.py``).
"""

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from engine.launch.preflight import BadSpec
from engine.loop.checkpoint import CheckpointError, Checkpoints
from engine.loop.difficulty import file_sha256
from engine.models.origin import model_origin
from engine.rollout.renderers.registry import renderer_for
from engine.rollout.stage_documents import check_line, line_reader
from engine.spec.pinned_file import PinnedFile
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from engine.spec.supervised import Chat, Recordings, Stage, Text
from engine.training.examples import FileExamples, LineReader, Sequences
from engine.training.recordings import BadRecording, check_digest, file_below, recorded_trajectories

MOST_WRITTEN = 10_000
"""Documents of a file that are written before a run starts, which reads all of it itself."""
READ_BYTES = 2**20
_UNWRITTEN: Sequences = [([0, 0], [False, True])]
"""What a document is taken for of which the form alone is looked at."""
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


def check_stage_files(spec: RunSpec, folder: Path, *, most_written: int | None = None) -> None:
    """Read the files of supervised stages, which lie below ``folder``, as the run will: nothing in them is refused.

    Of each file ``most_written`` documents (absent: all) are written by the model's tokenizer and template, and have to
    fit into its context; the others have the form that their stage says.  One line is held at a time.  Raises BadSpec,
    which names file, line and field.
    """
    try:
        for number, stage in enumerate(spec.recipe.stages):
            _check_stage(number, stage, spec, folder, most_written)
    except BadRecording as error:
        raise BadSpec([str(error)]) from error


def _check_stage(number: int, stage: Stage, spec: RunSpec, folder: Path, most_written: int | None) -> None:
    data, field = stage.data, f"recipe.stages.{number}.data"
    if isinstance(data, Recordings):
        recorded_trajectories(data, spec.model, folder)
    if not isinstance(data, Chat | Text):
        return
    path = file_below(folder, data.file, f"{field}.file")
    check_digest(path, data.sha256, f"{field}.file")
    examples = FileExamples(
        path,
        _document_check(stage, data, spec, most_written),
        field=field,
        context_tokens=model_origin(spec.model).context_tokens,
        too_long=data.too_long,
        sha256=data.sha256,
    )
    while not examples.read_on(READ_BYTES):
        pass


def _document_check(stage: Stage, data: Chat | Text, spec: RunSpec, most_written: int | None) -> LineReader:
    written, write = count(), line_reader(stage, spec.model, renderer_for(spec.model, spec.environment))

    def check(line: str, number: int) -> Sequences:
        if most_written is None or next(written) < most_written:
            return write(line, number)
        check_line(data, line, number)
        return _UNWRITTEN

    return check


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
