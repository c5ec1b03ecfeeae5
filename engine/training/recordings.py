"""Recorded trajectories to learn from: a file below one folder, one JSON document per line.

No torch: the command line checks a file before anything is started.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from engine.models.origin import model_origin
from engine.models.vocabulary import tokens_of
from engine.spec.model import Model
from engine.spec.problems import problems_in
from engine.spec.supervised import ColdStart
from engine.spec.trajectory import Trajectory, Turn
from engine.training.batch import samples_from_trajectory


class BadRecording(ValueError):
    """The file cannot be learned from; the message names it, the line and the field.  Trying again would not help."""


def recordings_folder() -> Path:
    """``PALESTRA_TRAJECTORIES``, by default ``trajectories`` of the home."""
    home = Path(os.environ.get("PALESTRA_HOME", ".palestra"))
    return Path(os.environ.get("PALESTRA_TRAJECTORIES", home / "trajectories"))


def recorded_trajectories(cold_start: ColdStart | None, model: Model, folder: Path) -> list[Trajectory]:
    """Those that the cold start names, every one of them fit to learn from; [] where it names none.

    Raises BadRecording.
    """
    if cold_start is None or cold_start.recorded is None or cold_start.steps == 0:
        return []
    path = file_below(folder, cold_start.recorded)
    trajectories = list(_read(path, model))
    if not trajectories:
        raise BadRecording(f"{path}: holds no trajectory")
    return trajectories


def file_below(folder: Path, relative: str) -> Path:
    """The file, links followed.  Raises BadRecording unless it lies below the folder and is a regular file."""
    root = folder.resolve()
    try:
        path = (root / relative).resolve()
        if not path.is_relative_to(root):
            raise BadRecording(f"recipe.cold_start.recorded = {relative!r} leads out of {root}")
        if not path.is_file():
            raise BadRecording(f"recipe.cold_start.recorded = {relative!r}: there is no such file in {root}")
    except OSError as error:  # a name too long for the file system, a folder that may not be entered
        raise BadRecording(f"recipe.cold_start.recorded = {relative[:80]!r}: {error.strerror} in {root}") from error
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
