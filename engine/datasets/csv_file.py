"""CSV (RFC 4180) and TSV: the first record names the columns, an empty cell is an absent value.

Lines end with LF, CRLF or CR.
"""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from engine.datasets.json_lines import NAME, NO_NAME, text_of
from engine.datasets.lines import LONGEST_ROW_BYTES, lines_of
from engine.datasets.sources import Read, SourceFault, SourceRow, fault
from engine.spec.dataset_preparation import MOST_COLUMNS
from engine.spec.dataset_report import RowFault

_DELIMITERS = ",;\t"
_BEGINNING_BYTES = 2**16


class _Refused(Exception):
    """A line that is no text; the fault says why."""

    def __init__(self, fault: RowFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class _Records:
    """The records of a file from a place on.  A quoted cell may go on over lines, up to the bound of a row."""

    def __init__(self, file: Path, opened: BinaryIO, position: int, number: int, delimiter: str) -> None:
        self._file, self._delimiter = file, delimiter
        self._lines = lines_of(opened, position, number)
        self.position, self.next_line = position, number
        self._record_bytes = 0

    def __iter__(self) -> Iterator[tuple[int, list[str] | RowFault]]:
        """The line on which each record begins, and its cells."""
        csv.field_size_limit(LONGEST_ROW_BYTES)
        reader = csv.reader(self._texts(), delimiter=self._delimiter, strict=True)
        while True:
            first_line, self._record_bytes = self.next_line, 0
            try:
                cells = next(reader)
            except StopIteration:
                return
            except _Refused as refused:
                yield first_line, refused.fault
            except csv.Error as error:
                yield first_line, fault(self._file, first_line, "", "", *_in_words(error))
            else:
                yield first_line, cells
                continue
            # A reader that has raised is in the middle of a record: the next line begins one.
            reader = csv.reader(self._texts(), delimiter=self._delimiter, strict=True)

    def _texts(self) -> Iterator[str]:
        for line in self._lines:
            self.position, self.next_line = line.end, line.number + 1
            text = text_of(self._file, line)
            if isinstance(text, RowFault):
                raise _Refused(text)
            self._record_bytes += len(text)
            if self._record_bytes > LONGEST_ROW_BYTES:
                message = f"the record is longer than {LONGEST_ROW_BYTES} bytes"
                remedy = "close the quoted cell that begins on it, or shorten it"
                raise _Refused(fault(self._file, line.number, "", text, message, remedy))
            yield text + "\n"


class _WithCarriageReturns(io.RawIOBase):
    """A file whose lines end with CR, as one whose lines end with LF: all of it stands at the same places."""

    def __init__(self, file: BinaryIO) -> None:
        self._under = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._under.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(content)] = content
        return len(content)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        return self._under.seek(position, whence)

    def tell(self) -> int:
        return self._under.tell()


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    with file.open("rb") as opened:
        beginning = opened.read(_BEGINNING_BYTES)
        opened.seek(0)
        ends_with_cr = b"\r" in beginning and b"\n" not in beginning
        yield io.BufferedReader(_WithCarriageReturns(opened)) if ends_with_cr else opened


def _in_words(error: csv.Error) -> tuple[str, str]:
    """Message and remedy."""
    if "new-line character" in str(error):
        return "a carriage return stands in a cell without quotes", "quote the cell, or end every line in the same way"
    remedy = 'write a quote within a quoted cell twice (""), and close each quoted cell'
    return f"the record is no CSV: {error}", remedy


def csv_rows(file: Path, position: int, number: int) -> Iterator[Read]:
    delimiter = _delimiter_of(file)
    with _opened(file) as opened:
        header = _Records(file, opened, 0, 1, delimiter)
        _, columns = next(iter(header), (1, []))
        if isinstance(columns, list):
            columns = _refusal_of(file, columns) or columns
        if isinstance(columns, RowFault):
            yield SourceFault(columns, file.stat().st_size, 2)
            return
        begin = max((position, number), (header.position, header.next_line))
        records = _Records(file, opened, *begin, delimiter)
        for line, cells in records:
            if cells:  # a blank line is none
                yield _read(file, records, line, columns, cells)


def _read(file: Path, records: _Records, line: int, columns: list[str], cells: list[str] | RowFault) -> Read:
    if not isinstance(cells, RowFault) and len(cells) == len(columns):
        values = {column: cell for column, cell in zip(columns, cells, strict=True) if cell}
        return SourceRow(line, values, records.position, records.next_line)
    if not isinstance(cells, RowFault):
        message = f"the record has {len(cells)} cells, and the header names {len(columns)} columns"
        cells = fault(file, line, "", ",".join(cells[:20]), message, "quote cells that hold the delimiter")
    return SourceFault(cells, records.position, records.next_line)


def _refusal_of(file: Path, columns: list[str]) -> RowFault | None:
    if len(columns) > MOST_COLUMNS:
        message = f"the header names {len(columns)} columns, and there may be {MOST_COLUMNS}"
        return fault(file, 1, "", "", message, "leave out what no environment reads")
    if not columns:
        return fault(file, 1, "", "", "the file has no header", "name the columns on the first line")
    for place, column in enumerate(columns):
        if not column.strip() or not NAME.fullmatch(column):
            message = f"column {place + 1} has {NO_NAME}"
            return fault(file, 1, column, column, message, "name every column on the first line")
        if column in columns[:place]:
            return fault(file, 1, column, column, "two columns have one name", "rename one of them")
    return None


def _delimiter_of(file: Path) -> str:
    """What separates the columns' names; a comma where none of the usual ones does."""
    with _opened(file) as opened:
        header = opened.readline(_BEGINNING_BYTES)
    return max(_DELIMITERS, key=lambda delimiter: header.count(delimiter.encode()))
