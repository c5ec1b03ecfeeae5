"""What a preparation is asked for, and where its files lie; or everything that is wrong with both, at once."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from engine.datasets.json_lines import parsed
from engine.spec.dataset_preparation import Preparation
from engine.spec.json_faults import json_fault
from engine.spec.problems import Problem, problems_in

SOURCE, REQUEST = "source", "preparation.json"


class FolderRefused(Exception):
    """Nothing can be read there; ``problems`` name field, value and remedy."""

    def __init__(self, folder: Path, problems: list[Problem]) -> None:
        super().__init__("\n".join(f"{folder}: {problem}" for problem in problems))
        self.problems = problems


def preparation_in(folder: Path) -> Preparation:
    """What is asked for in the folder, whose source is there.  Raises FolderRefused."""
    found = _request(folder)
    problems = [*source_problems(folder), *([] if isinstance(found, Preparation) else found)]
    if isinstance(found, Preparation) and not problems:
        return found
    raise FolderRefused(folder, problems)


def check_source(folder: Path) -> None:
    """Raises FolderRefused where no folder holds the files."""
    if problems := list(source_problems(folder)):
        raise FolderRefused(folder, problems)


def source_problems(folder: Path) -> Iterator[Problem]:
    source = folder / SOURCE
    if not source.is_dir():
        remedy = f"make it, and put the files into it: {source}/questions.jsonl"
        yield Problem(SOURCE, str(source), "there is no such folder", remedy)


def _request(folder: Path) -> Preparation | list[Problem]:
    file = folder / REQUEST
    try:
        return Preparation.model_validate(parsed(file.read_text("utf-8-sig")))
    except FileNotFoundError:
        remedy = 'write it, e.g. {"mapping": {"prompt": "question", "answer": "answer"}}'
        return [Problem(REQUEST, str(file), "there is no such file", remedy)]
    except OSError as error:
        return [Problem(REQUEST, str(file), f"it cannot be read: {error.strerror}", "make it a file that may be read")]
    except ValidationError as error:
        return [problem.inside(REQUEST) for problem in problems_in(error, Preparation)]
    except RecursionError:
        return [Problem(REQUEST, str(file), "it is nested too deeply", "leave out what is no field of a preparation")]
    except ValueError as error:
        return [Problem(REQUEST, str(file), f"it is no JSON: {json_fault(error)}", "mend it there")]
