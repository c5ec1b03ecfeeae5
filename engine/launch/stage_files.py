"""The files of supervised stages, read through before a run starts: every line has the form that its stage says.

One line is held at a time.  Whether a document fits into the model's context is found out by the run itself.
"""

from pathlib import Path

from engine.rollout.stage_documents import check_line
from engine.spec.model import Model
from engine.spec.supervised import Chat, Recordings, Stage, Text
from engine.training.examples import MOST_LINE_BYTES
from engine.training.recordings import BadRecording, check_digest, file_below, recorded_trajectories


def check_stage(number: int, stage: Stage, model: Model, folder: Path) -> None:
    """Raises BadRecording, which names file, line and field."""
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
