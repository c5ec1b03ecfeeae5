"""How a run file becomes a spec without problems, and whether a spec may go on from a checkpoint."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.spec.problems import Problem, problems_in
from engine.spec.run import RunSpec


class BadSpec(Exception):
    """One line per problem, each naming field, value and remedy."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def spec_from_file(path: Path) -> RunSpec:
    """Raises BadSpec."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise BadSpec([f"{path}: there is no such file; give the path of a run's TOML file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec([f"{path}: cannot be read: {error}; give a run's TOML file, in UTF-8"]) from error
    try:
        return RunSpec.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise BadSpec([f"{path}: {problem}" for problem in problems_in(error, RunSpec)]) from error
    except RecursionError:
        raise BadSpec([f"{path}: nested too deeply; no run's field lies deeper than a few tables"]) from None
    except ValueError as error:  # a TOMLDecodeError, or a number of so many digits that Python takes it for an attack
        raise BadSpec([f"{path}: not TOML: {error}; mend that line"]) from error


def differing_fields(old: RunSpec, new: RunSpec) -> list[Problem]:
    """Why ``new`` cannot go on from a checkpoint of ``old``: a resumed run is the same run."""
    remedy = "give the old value, or start afresh in another --run-dir"
    return [
        Problem(field, after, f"the checkpoint was made with {before!r}", remedy)
        for field, before, after in _differences(old.model_dump(), new.model_dump(), "")
    ]


def _differences(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, f"{path}{key}.")
        elif before != after:
            yield f"{path}{key}", before, after
