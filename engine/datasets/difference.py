"""What differs between two versions, by the ids of their rows: one pass over two sorted indexes, row by row."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.environments.dataset_reader import DamagedDataset, DatasetReader
from engine.spec.dataset_files import INDEX_ENTRY, ROWS_INDEX
from engine.spec.dataset_report import MOST_SAMPLES, ChangedRow, DifferenceReport

_ENTRIES_AT_ONCE = 4096
_LONGEST_SAMPLE_BYTES = 8192


@dataclass(frozen=True)
class _Entry:
    id: bytes
    digest: bytes
    split: str
    place: int


def difference(before: Path, after: Path) -> DifferenceReport:
    """Raises DamagedDataset."""
    with DatasetReader(before, verifies=False) as old, DatasetReader(after, verifies=False) as new:
        return _Difference(old, new).report()


class _Difference:
    def __init__(self, old: DatasetReader, new: DatasetReader) -> None:
        self._old, self._new = old, new
        self._added: list[ChangedRow] = []
        self._removed: list[ChangedRow] = []
        self._changed: list[ChangedRow] = []
        self._counts: dict[str, Any] = dict.fromkeys(("added", "removed", "changed", "moved", "same"), 0)

    def report(self) -> DifferenceReport:
        for before, after in _joined(_entries(self._old), _entries(self._new)):
            self._compare(before, after)
        return DifferenceReport(
            **self._counts, samples_added=self._added, samples_removed=self._removed, samples_changed=self._changed
        )

    def _compare(self, before: _Entry | None, after: _Entry | None) -> None:
        if before is None and after is not None:
            self._count("added", self._added, before, after)
        elif after is None:
            self._count("removed", self._removed, before, after)
        elif before is not None and before.digest != after.digest:
            self._count("changed", self._changed, before, after)
        elif before is not None:
            self._counts["moved" if before.split != after.split else "same"] += 1

    def _count(self, kind: str, samples: list[ChangedRow], before: _Entry | None, after: _Entry | None) -> None:
        self._counts[kind] += 1
        if len(samples) < MOST_SAMPLES:
            old, new = _document(self._old, before), _document(self._new, after)
            shown, entry = new or old or {}, after or before
            assert entry is not None
            samples.append(ChangedRow(id=str(shown.get("id")), split=entry.split, before=old, after=new))


def _document(reader: DatasetReader, entry: _Entry | None) -> dict[str, Any] | None:
    """The row; of a long one its beginning, as a text."""
    if entry is None:
        return None
    line = reader.line(entry.split, entry.place)
    found: dict[str, Any] = json.loads(line)
    if len(line) > _LONGEST_SAMPLE_BYTES:
        return {"id": found["id"], "(cut)": line[:_LONGEST_SAMPLE_BYTES].decode("utf-8", "ignore")}
    return found


def _joined(old: Iterator[_Entry], new: Iterator[_Entry]) -> Iterator[tuple[_Entry | None, _Entry | None]]:
    before, after = next(old, None), next(new, None)
    while before is not None or after is not None:
        if after is None or (before is not None and before.id < after.id):
            yield before, None
            before = next(old, None)
        elif before is None or after.id < before.id:
            yield None, after
            after = next(new, None)
        else:
            yield before, after
            before, after = next(old, None), next(new, None)


def _entries(reader: DatasetReader) -> Iterator[_Entry]:
    """The rows of the version by their ids.  Raises DamagedDataset for an index that is not what was stored."""
    file, digest = reader.folder / ROWS_INDEX, hashlib.sha256()
    with file.open("rb") as opened:
        while data := opened.read(_ENTRIES_AT_ONCE * INDEX_ENTRY.size):
            digest.update(data)
            for row_id, line, split, place in INDEX_ENTRY.iter_unpack(data):
                if split >= len(reader.splits):
                    raise DamagedDataset(file, "names a split that the version does not have")
                yield _Entry(row_id, line, reader.splits[split], place)
    if digest.hexdigest() != reader.manifest.index_sha256:
        raise DamagedDataset(file, "has another content than when it was stored")
