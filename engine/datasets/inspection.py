"""The first rows of a team's files, the columns that they have, and what those seem to be."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from engine.datasets.canonical import parsed_text
from engine.datasets.request import SOURCE, check_source
from engine.datasets.source_files import rows_of, source_files
from engine.datasets.sources import SourceRow, shown
from engine.spec.dataset_preparation import MOST_COLUMNS, ColumnMapping
from engine.spec.dataset_report import RowFault, SourceColumn, SourceReport

LOOKED_AT = 1000
"""Rows of each file."""
SHOWN_ROWS = 20
MOSTLY = 0.75
"""The share of rows that have to fit for a column to be guessed."""
SHOWN_FAULTS = 20
MOST_FILES_LOOKED_AT = 20
_NAMES = {
    "prompt": ("prompt", "question", "problem", "instruction", "input", "query", "task", "problem_statement"),
    "messages": ("messages", "conversation", "conversations", "chat", "dialogue"),
    "answer": (
        "answer",
        "final_answer",
        "solution",
        "target",
        "output",
        "response",
        "expected",
        "label",
        "ground_truth",
    ),
    "tests": ("tests", "test", "test_code", "unit_tests", "test_cases", "test_list"),
    "image": ("image", "docker_image", "image_name", "container"),
    "group": ("group", "group_id", "cluster", "family", "source_id"),
    "split": ("split", "subset", "partition", "fold"),
    "id": ("id", "uid", "uuid", "task_id", "question_id", "problem_id", "instance_id"),
    "metadata": ("metadata", "meta", "extra_info", "info"),
}
"""What columns of public datasets are called, the likeliest name first."""


def inspect(folder: Path) -> SourceReport:
    """Raises FolderRefused."""
    check_source(folder)
    found: list[dict[str, Any]] = []
    faults: list[RowFault] = []
    for file in source_files(folder / SOURCE)[:MOST_FILES_LOOKED_AT]:
        for read in islice(rows_of(file), LOOKED_AT):
            if isinstance(read, SourceRow):
                found.append(read.values)
            elif len(faults) < SHOWN_FAULTS:
                faults.append(read.fault)
    names = list(dict.fromkeys(name for values in found for name in values))[:MOST_COLUMNS]
    columns = [_column(name, found) for name in names]
    mapping = _guess(names, found)
    split = mapping.split if mapping else None
    return SourceReport(
        columns=columns,
        rows=[[_cell(values.get(name)) for name in names] for values in found[:SHOWN_ROWS]],
        mapping=mapping,
        splits=sorted({shown(values[split]) for values in found if values.get(split)})[:20] if split else [],
        faults=faults,
    )


def _column(name: str, found: list[dict[str, Any]]) -> SourceColumn:
    values = [values[name] for values in found if values.get(name) is not None]
    return SourceColumn(name=name, filled=len(values), kind=_kind(values[0]) if values else "nothing")


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "number"
        case list():
            return "list"
        case dict():
            return "object"
        case _:
            return "text"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _guess(names: list[str], found: list[dict[str, Any]]) -> ColumnMapping | None:
    """By the columns' names, and for messages, metadata and ids by what they hold."""
    small = {name.lower(): name for name in reversed(names)}
    guessed = {
        part: column
        for part, likely in _NAMES.items()
        if (column := next((small[name] for name in likely if name in small), None)) is not None
        and _can_be(part, [values[column] for values in found if values.get(column) is not None])
    }
    if "messages" in guessed:
        guessed.pop("prompt", None)
    if "prompt" not in guessed and "messages" not in guessed:
        return None
    return ColumnMapping.model_validate(guessed)


def _can_be(part: str, values: list[Any]) -> bool:
    """A few rows may be at fault, so most of them decide."""
    if part == "id":
        return len({str(value) for value in values}) == len(values)
    return sum(_fits(part, value) for value in values) >= MOSTLY * len(values)


def _fits(part: str, value: Any) -> bool:
    match part:
        case "messages":
            return _is(value, list)
        case "metadata":
            return _is(value, dict)
        case "answer" | "group":
            return isinstance(value, str | int | float)
        case _:
            return isinstance(value, str)


def _is(value: Any, wanted: type) -> bool:
    try:
        return isinstance(parsed_text(value) if isinstance(value, str) else value, wanted)
    except ValueError:
        return False
