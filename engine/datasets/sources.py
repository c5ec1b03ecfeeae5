"""What reading a team's files gives: rows of named values, and faults with their lines.

A place in a file is a number, from which the reading of a killed process goes on.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.spec.dataset_report import LONGEST_SHOWN, RowFault


@dataclass(frozen=True)
class Place:
    """Where reading goes on."""

    file: int = 0
    """The number of the file, from 0."""
    position: int = 0
    """A byte of a text, a row of Parquet."""
    line: int = 1


@dataclass(frozen=True)
class SourceRow:
    line: int
    values: dict[str, Any]
    position: int
    """Behind it."""
    next_line: int


@dataclass(frozen=True)
class SourceFault:
    fault: RowFault
    position: int
    next_line: int


def value_at(values: dict[str, Any], column: str) -> Any:
    """The value of a column, or of a field inside one by its dotted path; None where there is none.

    A column whose own name has the dots goes before the path.
    """
    if column in values:
        return values[column]
    inner: Any = values
    for name in column.split("."):
        inner = inner.get(name) if isinstance(inner, dict) else None
    return inner


Read = SourceRow | SourceFault


def fault(file: Path, line: int | None, column: str, value: Any, message: str, remedy: str) -> RowFault:
    return RowFault(
        file=storable(file.name), line=line, column=shown(column), value=shown(value), message=storable(message),
        remedy=remedy,
    )  # fmt: skip


def shown(value: Any) -> str:
    """For people, cut where it is long."""
    text = value if isinstance(value, str) else repr(value)
    return storable(text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "...")


def storable(text: str) -> str:
    """For a database that takes neither NUL nor halves of characters."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()
