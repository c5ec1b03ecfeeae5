"""Files of a team as rows of named values: JSON lines, CSV or Parquet, by the ending of the name.

All of it is hostile.  A row that cannot be read is a fault with its line, and the rows behind it are read.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from engine.datasets.csv_file import csv_rows
from engine.datasets.json_lines import json_rows
from engine.datasets.sources import Read, SourceFault, fault

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}
Reader = Callable[[Path, int, int], Iterator[Read]]


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
            return csv_rows
        case ".parquet":  # imported late: pyarrow maps memory that the other formats can do without
            from engine.datasets.parquet_file import parquet_rows

            return parquet_rows
        case _:
            return json_rows


def source_files(folder: Path) -> list[Path]:
    """The files of a source, in the order in which they are read."""
    return sorted(path for path in folder.iterdir() if path.is_file())
