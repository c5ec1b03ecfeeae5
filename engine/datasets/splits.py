"""In which split a row stands."""

import hashlib
import re
from pathlib import Path

from engine.datasets.similarity import evened, question_of
from engine.datasets.sources import SourceRow, fault, value_at
from engine.spec.dataset_preparation import OneSplit, Preparation, SplitsByFile, SplitsByShare
from engine.spec.dataset_report import RowFault
from engine.spec.dataset_row import DatasetRow

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,49}")
_REMEDY = "use 1 to 50 small letters, digits, _ and -, the first a letter; such as train and heldout"


def split_of(file: Path, source: SourceRow, row: DatasetRow, preparation: Preparation) -> str | RowFault:
    match preparation.splitting:
        case OneSplit(name=name):
            return name
        case SplitsByFile():
            name = file.stem.lower()
            message = f"the file's name gives no split: {name}"
            return name if _NAME.fullmatch(name) else fault(file, None, "", file.name, message, _REMEDY)
        case SplitsByShare() as shares:
            return _dealt(row, shares)
        case _:
            return _given(file, source, preparation.mapping.split or "")


def _given(file: Path, source: SourceRow, column: str) -> str | RowFault:
    value = value_at(source.values, column)
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    message = "the row names no split" if value is None else "that is no name of a split"
    return fault(file, source.line, column, "" if value is None else value, message, _REMEDY)


def _dealt(row: DatasetRow, shares: SplitsByShare) -> str:
    """By a number in [0, 1) that seed and group decide, or seed and text where the row is of no group."""
    key = f"group {row.group}" if row.group is not None else f"text {evened(question_of(row))}"
    digest = hashlib.sha256(f"{shares.seed} {key}".encode("utf-8", "replace")).digest()
    drawn = int.from_bytes(digest[:8], "big") / 2**64
    reached = 0.0
    for split in shares.splits:
        reached += split.share
        if drawn < reached:
            return split.name
    return shares.splits[-1].name
