"""The files of a version, written from what was staged: lines, offsets, the index of rows, and last the manifest."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engine.datasets.sources import fault
from engine.datasets.workbench import Workbench
from engine.disk import fsync
from engine.spec.dataset_files import (
    DATASET_MANIFEST,
    INDEX_ENTRY,
    OFFSET,
    ROWS_INDEX,
    DatasetManifest,
    StoredSplit,
    lines_file,
    offsets_file,
)
from engine.spec.dataset_preparation import ColumnMapping


@dataclass
class _Digested:
    """A file that is written once, and digested on the way."""

    file: BinaryIO

    def __post_init__(self) -> None:
        self.digest, self.bytes = hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.digest.update(data)
        self.bytes += len(data)

    def end(self) -> str:
        """The file is on the disk; its SHA-256."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return self.digest.hexdigest()


def seal(workbench: Workbench, folder: Path, columns: list[str], mapping: ColumnMapping) -> None:
    """Write the version's files, or complain about a split of which nothing is left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    workbench.rows.execute("DROP TABLE IF EXISTS sealed")
    workbench.rows.execute("CREATE TABLE sealed (id BLOB, digest BLOB, split INTEGER, place INTEGER)")
    names = sorted(workbench.splits)
    emptied = [name for name in names if not _has_rows(workbench, name)]
    for name in emptied:
        message = f"no row of the split {name} is left without its duplicates in other splits"
        remedy = 'set duplicates.across_splits = "report", or give it rows of its own'
        workbench.complain(fault(folder, None, "", name, message, remedy))
    if not emptied:
        splits = [_sealed_split(workbench, folder, name, number) for number, name in enumerate(names)]
        index = _sealed_index(workbench, folder)
        manifest = DatasetManifest(splits=splits, index_sha256=index, columns=sorted(columns), mapping=mapping)
        (folder / DATASET_MANIFEST).write_text(manifest.text())
        fsync(folder / DATASET_MANIFEST)
        fsync(folder)
    workbench.commit()


_KEPT = "split = ? AND NOT (? AND number IN (SELECT row FROM overlaps))"


def _has_rows(workbench: Workbench, name: str) -> bool:
    wanted = [workbench.splits[name], workbench.value("drops")]
    return bool(workbench.rows.execute(f"SELECT EXISTS(SELECT 1 FROM rows WHERE {_KEPT})", wanted).fetchone()[0])


def _sealed_split(workbench: Workbench, folder: Path, name: str, number: int) -> StoredSplit:
    lines = _Digested((folder / lines_file(name)).open("wb"))
    offsets = _Digested((folder / offsets_file(name)).open("wb"))
    place = 0
    for row_id, digest, line in _kept_lines(workbench, name):
        offsets.write(OFFSET.pack(lines.bytes))
        lines.write(line)
        workbench.rows.execute("INSERT INTO sealed VALUES (?, ?, ?, ?)", [row_id, digest, number, place])
        place += 1
    size = lines.bytes
    return StoredSplit(name=name, rows=place, bytes=size, sha256=lines.end(), offsets_sha256=offsets.end())


def _kept_lines(workbench: Workbench, name: str) -> Iterator[tuple[bytes, bytes, bytes]]:
    wanted = [workbench.splits[name], workbench.value("drops")]
    query = f"SELECT id, digest, begins, length FROM rows WHERE {_KEPT} ORDER BY number"
    with (workbench.folder / lines_file(name)).open("rb") as staged:
        for row_id, digest, begins, length in workbench.rows.execute(query, wanted):
            staged.seek(begins)
            yield row_id, digest, staged.read(length)


def _sealed_index(workbench: Workbench, folder: Path) -> str:
    index = _Digested((folder / ROWS_INDEX).open("wb"))
    for row_id, digest, split, place in workbench.rows.execute("SELECT * FROM sealed ORDER BY id"):
        index.write(INDEX_ENTRY.pack(row_id, digest, split, place))
    return index.end()
