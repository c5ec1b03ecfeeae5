"""The files of a stored version of a dataset, and the manifest by whose SHA-256 the version is known.

    dataset.json      the manifest
    train.jsonl       the rows of the split ``train``, one ``DatasetRow`` a line
    train.offsets     where each of its lines begins: little-endian, 8 bytes a row
    rows.index        every row's identity, sorted, so that two versions are compared in one pass

Nothing is read or written here.
"""

import struct
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from engine.spec.dataset_preparation import MOST_COLUMNS, ColumnMapping, ColumnName, SplitName
from engine.spec.strict import Strict

DATASET_MANIFEST = "dataset.json"
ROWS_INDEX = "rows.index"
OFFSET = struct.Struct("<Q")
"""One entry of a split's offsets."""
INDEX_ENTRY = struct.Struct(">16s16sHQ")
"""One entry of ``rows.index``: the first 16 bytes of the SHA-256 of a row's id, and of its line; the number of its
split in the manifest; its number in the split."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class StoredSplit(Strict):
    name: SplitName
    rows: int = Field(ge=1)
    bytes: int = Field(ge=1)
    """The size of its lines."""
    sha256: Sha256
    """The digest of its lines."""
    offsets_sha256: Sha256

    @property
    def lines_file(self) -> str:
        return lines_file(self.name)

    @property
    def offsets_file(self) -> str:
        return offsets_file(self.name)


class DatasetManifest(Strict):
    """Equal rows in equal splits, of equal columns, make equal text."""

    schema_version: Literal[1] = 1
    splits: list[StoredSplit] = Field(min_length=1)
    """By name."""
    index_sha256: Sha256
    columns: list[ColumnName] = Field(max_length=MOST_COLUMNS)
    """Those of the source, as it named them."""
    mapping: ColumnMapping
    """Which of them became what."""

    def text(self) -> str:
        """What ``dataset.json`` holds."""
        return self.model_dump_json(indent=1) + "\n"

    def split(self, name: str) -> StoredSplit | None:
        return next((split for split in self.splits if split.name == name), None)

    @property
    def rows(self) -> int:
        return sum(split.rows for split in self.splits)

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file but the manifest."""
        sizes = {ROWS_INDEX: self.rows * INDEX_ENTRY.size}
        for split in self.splits:
            sizes[split.lines_file], sizes[split.offsets_file] = split.bytes, split.rows * OFFSET.size
        return sizes


def lines_file(split: str) -> str:
    return f"{split}.jsonl"


def offsets_file(split: str) -> str:
    return f"{split}.offsets"
