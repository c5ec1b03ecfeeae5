"""Recorded trajectories to learn from: a file below one folder, one JSON document per line.

No torch: the command line checks a file before anything is started.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from engine.models.origin import model_origin
from engine.models.vocabulary import tokens_of
from engine.spec.model import Model
from engine.spec.problems import problems_in
from engine.spec.supervised import Recordings
from engine.spec.trajectory import Trajectory, Turn
from engine.training.batch import samples_from_trajectory

FIELD = "recipe.stages.data.file"
"""For messages."""


class BadRecording(ValueError):
    """The file cannot be learned from; the message names it, the line and the field.  Trying again would not help."""


def recordings_folder() -> Path:
    """``PALESTRA_TRAJECTORIES``, by default ``trajectories`` of the home."""
    home = Path(os.environ.get("PALESTRA_HOME", ".palestra"))
    return Path(os.environ.get("PALESTRA_TRAJECTORIES", home / "trajectories"))


def recorded_trajectories(data: Recordings, model: Model, folder: Path) -> list[Trajectory]:
    """Those of a stage's file, every one of them fit to learn from.  Raises BadRecording."""
    path = file_below(folder, data.file, FIELD)
    check_digest(path, data.sha256, FIELD)
    trajectories = list(_read(path, model))
    if not trajectories:
        raise BadRecording(f"{path}: holds no trajectory")
    return trajectories


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits.  Raises BadRecording where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadRecording(f"{path}: cannot be read: {error.strerror}") from error


def check_digest(path: Path, sha256: str | None, field: str) -> None:
    """Raises BadRecording where the file's content is not what the spec names."""
    if sha256 is not None and (digest := digest_of(path)) != sha256:
        raise BadRecording(f"{field} = {path.name!r}: its SHA-256 is {digest}, and the spec names {sha256}")


def file_below(folder: Path, relative: str, field: str) -> Path:
    """The file, links followed.  Raises BadRecording unless it lies below the folder and is a regular file."""
    root = folder.resolve()
    try:
        path = (root / relative).resolve()
        if not path.is_relative_to(root):
            raise BadRecording(f"{field} = {relative!r} leads out of {root}")
        if not path.is_file():
            raise BadRecording(f"{field} = {relative!r}: there is no such file in {root}")
    except OSError as error:  # a name too long for the file system, a folder that may not be entered
        raise BadRecording(f"{field} = {relative[:80]!r}: {error.strerror} in {root}") from error
    return path


def _read(path: Path, model: Model) -> Iterator[Trajectory]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _parsed(line, f"{path}, line {number}", model)
    except OSError as error:
        raise BadRecording(f"{path}: cannot be read: {error.strerror}") from error


def _parsed(line: bytes, where: str, model: Model) -> Trajectory:
    try:
        trajectory = Trajectory.model_validate_json(line)
    except ValidationError as error:
        problems = problems_in(error, Trajectory)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BadRecording(f"{where}: {problems[0]}{more}") from None
    for field, problem in _flaws(trajectory, model):
        raise BadRecording(f"{where}: {field}: {problem}")
    return trajectory


def _flaws(trajectory: Trajectory, model: Model) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) of a document of the right form that still cannot be learned."""
    if not trajectory.can_be_learned:
        yield "left_out", f"all of it was too long for an event, and it lacks {trajectory.left_out}"
    vocabulary, most = len(tokens_of(model)), model_origin(model).context_tokens
    if not trajectory.turns:
        yield "segments", "there is no turn"
    for number, segment in enumerate(trajectory.segments):
        path = f"segments.{number}"
        for place, turn in enumerate(segment.turns):
            yield from _flaws_of_turn(turn, f"{path}.turns.{place}", vocabulary)
        if segment.prefix is None and not segment.turns[0].context_ids:
            problem = "is empty: nothing stands before the first token that could predict it"
            yield f"{path}.turns.0.context_ids", problem
        if segment.token_count > most:
            yield path, f"{segment.token_count} tokens do not fit into model.context_tokens = {most}"
    try:
        samples_from_trajectory(trajectory)
    except (ValueError, IndexError) as error:
        yield "changes", str(error)


def _flaws_of_turn(turn: Turn, path: str, vocabulary: int) -> Iterator[tuple[str, str]]:
    for name in ("context_ids", "token_ids"):
        if any(not 0 <= token < vocabulary for token in getattr(turn, name)):
            yield f"{path}.{name}", f"a token is not in 0 .. {vocabulary - 1}"
    if len(turn.logprobs) != len(turn.token_ids):
        yield f"{path}.logprobs", f"{len(turn.logprobs)} for {len(turn.token_ids)} tokens"
