"""Files of a team as rows of named values: JSON lines, CSV or Parquet, by the ending of the name.

All of it is hostile.  A row that cannot be read is a fault with its line, and the rows behind it are read; a place in a
file is a number, from which the reading of a killed process goes on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.spec.dataset_report import LONGEST_SHOWN, RowFault

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


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


Read = SourceRow | SourceFault
Reader = Callable[[Path, int, int], Iterator[Read]]


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


def rows_of(file: Path, position: int = 0, line: int = 1) -> Iterator[Read]:
    """The rows of the file from ``position`` on, and its faults."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(8)
    kind = next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), None)
    if kind is not None:
        message = f"the file is compressed ({kind}), and a small file could unpack to any size"
        whole = fault(file, None, "", start[:4], message, "unpack it and upload what is in it")
        return iter([SourceFault(whole, size, 1)])
    if size == 0:
        return iter([SourceFault(fault(file, None, "", "", "the file is empty", "leave it out"), 0, 1)])
    return _reader_of(file)(file, position, line)


def _reader_of(file: Path) -> Reader:
    match file.suffix.lower():
        case ".csv" | ".tsv":
            from engine.datasets.csv_file import csv_rows

            return csv_rows
        case ".parquet":  # imported late: pyarrow maps memory that the other formats can do without
            from engine.datasets.parquet_file import parquet_rows

            return parquet_rows
        case _:
            from engine.datasets.json_lines import json_rows

            return json_rows


def source_files(folder: Path) -> list[Path]:
    """The files of a source, in the order in which they are read."""
    return sorted(path for path in folder.iterdir() if path.is_file())
