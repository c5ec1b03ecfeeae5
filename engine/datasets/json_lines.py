"""JSON lines: an object a line, whose keys are the columns."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.datasets.lines import LONGEST_ROW_BYTES, Line, lines_of
from engine.datasets.sources import Read, SourceFault, SourceRow, fault
from engine.spec.dataset_preparation import MOST_COLUMNS
from engine.spec.dataset_report import RowFault
from engine.spec.json_faults import each_key_once, json_fault, no_number

NAME = re.compile(r"[^\x00-\x1f\ud800-\udfff]{1,300}")
NO_NAME = "no name of 1 to 300 characters that a text may have"
_ON_ONE_LINE = "write one JSON object a line, on one line"
_ON_LINES = "write each object of the list on a line of its own, as `jq -c '.[]' FILE` does"
_LONGEST_NUMBER = 400
"""Digits of a number."""


def json_rows(file: Path, position: int, number: int) -> Iterator[Read]:
    with file.open("rb") as opened:
        for line in lines_of(opened, position, number):
            if line.content is not None and not line.content.strip():
                continue
            values = object_of(file, line)
            if isinstance(values, RowFault):
                yield SourceFault(values, line.end, line.number + 1)
            else:
                yield SourceRow(line.number, values, line.end, line.number + 1)


def object_of(file: Path, line: Line) -> dict[str, Any] | RowFault:
    text = text_of(file, line)
    if isinstance(text, RowFault):
        return text
    try:
        values = parsed(text)
    except RecursionError:
        message, remedy = "objects and lists are nested too deeply", "flatten them"
        return fault(file, line.number, "", text[:80], message, remedy)
    except ValueError as error:
        message = f"the line is no JSON: {json_fault(error)}"
        return fault(file, line.number, "", text, message, _ON_LINES if text.lstrip()[:1] == "[" else _ON_ONE_LINE)
    if isinstance(values, list):
        return fault(file, line.number, "", text, "the line is no object but a list", _ON_LINES)
    if not isinstance(values, dict):
        message = f"the line is no object but {text[:40].strip()}"
        return fault(file, line.number, "", text, message, 'write it as {"prompt": ...}')
    if len(values) > MOST_COLUMNS:
        message = f"the row has {len(values)} columns, and may have {MOST_COLUMNS}"
        return fault(file, line.number, "", "", message, "leave out what no environment reads")
    if unnamed := [key for key in values if not NAME.fullmatch(key)]:
        return fault(file, line.number, unnamed[0], unnamed[0], f"a column has {NO_NAME}", "rename it")
    return values


def text_of(file: Path, line: Line) -> str | RowFault:
    if line.content is None:
        message = f"the row is longer than {LONGEST_ROW_BYTES} bytes"
        return fault(file, line.number, "", "", message, "shorten it, or leave it out")
    try:
        return line.content.decode()
    except UnicodeDecodeError as error:
        message = f"byte {error.start + 1} of the line is no UTF-8"
        shown_bytes = line.content[max(0, error.start - 8) : error.start + 8]
        return fault(file, line.number, "", shown_bytes, message, "save the file as UTF-8")


def parsed(text: str) -> Any:
    """Raises ValueError also for NaN, numbers beyond a double, and keys that stand twice; and RecursionError."""
    return json.loads(
        text, object_pairs_hook=each_key_once, parse_constant=no_number, parse_float=_finite, parse_int=_whole
    )


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:20]} is beyond a double")
    return number


def _whole(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"a number has {len(text)} digits")
    return int(text)
