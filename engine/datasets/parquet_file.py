"""Parquet, read a few rows at a time.  What its metadata claims is compared with what is there."""

import datetime
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from engine.datasets.json_lines import NAME, NO_NAME
from engine.datasets.sources import Read, SourceFault, SourceRow, fault
from engine.spec.dataset_preparation import MOST_COLUMNS
from engine.spec.dataset_report import RowFault

ROWS_AT_ONCE = 64
_REMEDY = "write the file again, e.g. with pyarrow.parquet.write_table"


def parquet_rows(file: Path, position: int, number: int) -> Iterator[Read]:
    """Rows are counted from 1, as lines are."""
    size = file.stat().st_size
    try:
        opened = pyarrow.parquet.ParquetFile(file, memory_map=False, pre_buffer=False)
        refusal = _refusal_of(file, opened)
        if refusal is None:
            yield from _rows(file, opened, position)
            return
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        refusal = fault(file, None, "", "", f"the file cannot be read as Parquet: {reason}", _REMEDY)
    yield SourceFault(refusal, size, number)


def _refusal_of(file: Path, opened: Any) -> RowFault | None:
    names = opened.schema_arrow.names
    if len(names) > MOST_COLUMNS:
        message = f"the file has {len(names)} columns, and may have {MOST_COLUMNS}"
        return fault(file, None, "", "", message, "leave out what no environment reads")
    if len(set(names)) < len(names) or not all(map(NAME.fullmatch, names)):
        message = f"two columns have one name, or one has {NO_NAME}"
        return fault(file, None, "", "", message, "rename them")
    metadata = opened.metadata
    claimed, summed = metadata.num_rows, sum(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    if claimed != summed:
        message = f"its metadata claims {claimed} rows, and its row groups {summed}"
        return fault(file, None, "", "", message, _REMEDY)
    return None


def _rows(file: Path, opened: Any, position: int) -> Iterator[Read]:
    begin = 0
    for group in range(opened.metadata.num_row_groups):
        claimed = opened.metadata.row_group(group).num_rows
        if begin + claimed > position:
            found = 0
            for batch in opened.iter_batches(batch_size=ROWS_AT_ONCE, row_groups=[group], use_threads=False):
                for values in batch.to_pylist():
                    found += 1
                    if (row := begin + found) > position:
                        yield _read(file, row, values)
            if found != claimed:
                message = f"row group {group + 1} holds {found} rows, and its metadata claims {claimed}"
                yield SourceFault(fault(file, None, "", "", message, _REMEDY), begin + claimed, begin + claimed + 1)
        begin += claimed


def _read(file: Path, row: int, values: dict[str, Any]) -> Read:
    plain: dict[str, Any] = {}
    for name, value in values.items():
        try:
            if value is not None:
                plain[name] = _plain(value)
        except ValueError as error:
            remedy = "convert the column to text, or write the file without it"
            return SourceFault(fault(file, row, name, value, str(error), remedy), row, row + 1)
    return SourceRow(row, plain, row, row + 1)


def _plain(value: Any) -> Any:
    """As JSON would have it; keys of a struct without a value are left out."""
    match value:
        case dict():
            return {name: _plain(inner) for name, inner in value.items() if inner is not None}
        case list():
            return [_plain(inner) for inner in value]
        case None | bool() | int() | float() | str():
            return value
        case decimal.Decimal():
            return str(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case _:
            raise ValueError(f"it holds {type(value).__name__}, which no JSON has")
