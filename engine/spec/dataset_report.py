"""What the processes that read a team's files report: columns, faults, duplicates, differences, lengths."""

from typing import Any, Literal

from pydantic import Field

from engine.spec.dataset_preparation import ColumnMapping, SplitName
from engine.spec.strict import Strict

MOST_FAULTS = 1000
"""Faults that are kept one by one; all are counted."""
MOST_SAMPLES = 100
"""Rows that are shown of each kind of duplicate or difference."""
LONGEST_SHOWN = 300
"""Characters of a value, in a fault or a preview."""


class RowFault(Strict):
    """Why a row cannot be taken, so that its author can mend it."""

    file: str
    line: int | None
    """From 1, where the row begins; of Parquet the row.  None for the file itself."""
    column: str
    """As the source names it; empty for the row itself."""
    value: str
    message: str
    remedy: str


class SourceColumn(Strict):
    name: str
    filled: int
    """How many of the rows that were looked at have it."""
    kind: str
    """What the first of them holds: text, number, list ..."""


class SourceReport(Strict):
    """The first rows of the files, and what their columns seem to be."""

    columns: list[SourceColumn]
    rows: list[list[str]]
    """The first rows, by column, each value cut for display."""
    mapping: ColumnMapping | None
    """A guess by the columns' names; None where none of them looks like a prompt or messages."""
    splits: list[str]
    """Values of the column that seems to hold the splits."""
    faults: list[RowFault]
    """The faults of the files themselves, and of the rows that were looked at."""


class Overlap(Strict):
    """A row that asks the same as a row of another split, or nearly so."""

    split: SplitName
    id: str
    other_split: SplitName
    other_id: str
    similarity: float
    """1: equal texts."""


class DuplicatesReport(Strict):
    within_splits: int = 0
    """Rows whose text another row of their own split has before them."""
    across_splits: int = 0
    """Rows of which an equal or a near one stands in another split, which is smaller."""
    near: int = 0
    """How many of those are not equal."""
    dropped: int = 0
    samples: list[Overlap] = []


class PreparationReport(Strict):
    """Where the preparation is, or what came of it."""

    state: Literal["reading", "comparing", "ready", "refused"]
    bytes_done: int
    """How many bytes of the source are done."""
    rows: int
    faults: int = 0
    shown_faults: list[RowFault] = Field(default=[], max_length=MOST_FAULTS)
    duplicates: DuplicatesReport = DuplicatesReport()


class ChangedRow(Strict):
    id: str
    split: SplitName
    before: dict[str, Any] | None
    """Absent: the row is new, or only its split is another."""
    after: dict[str, Any] | None


class DifferenceReport(Strict):
    """Rows of two versions, compared by their ids."""

    state: Literal["ready"] = "ready"
    added: int
    removed: int
    changed: int
    moved: int
    """Equal rows that stand in another split."""
    same: int
    samples_added: list[ChangedRow]
    samples_removed: list[ChangedRow]
    samples_changed: list[ChangedRow]


class SplitLengths(Strict):
    split: SplitName
    rows: int
    most: int
    mean: float
    percentiles: list[int]
    """The 50th, 90th, 95th and 99th."""
    bins: list[int]
    """Rows of 0, 1, 2 to 3, 4 to 7 ... tokens."""


class LengthsReport(Strict):
    """How many tokens the rows' prompts and messages have under a tokenizer, the template's own tokens aside."""

    state: Literal["reading", "ready", "refused"]
    rows_done: int
    rows: int
    splits: list[SplitLengths] = []
    longest: list[str] = []
    """The ids of the longest rows, with their tokens."""
    problem: str = ""
