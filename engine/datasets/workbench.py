"""What a preparation has found so far, on the disk: any amount of rows takes the same memory.

``work.sqlite`` says how far the staged files of the splits reach; what lies behind that, a killed process has written,
and it is cut off.  So a preparation goes on at its last commit.
"""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from engine.datasets.similarity import Bands
from engine.datasets.sources import Place
from engine.spec.dataset_files import lines_file
from engine.spec.dataset_report import MOST_FAULTS, RowFault

_SCHEMA = """
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE splits (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, bytes INTEGER NOT NULL);
CREATE TABLE rows (number INTEGER PRIMARY KEY, id BLOB NOT NULL, digest BLOB NOT NULL, text BLOB NOT NULL,
    split INTEGER NOT NULL, begins INTEGER NOT NULL, length INTEGER NOT NULL,
    file TEXT NOT NULL, line INTEGER NOT NULL);
CREATE UNIQUE INDEX row_ids ON rows (id);
CREATE TABLE groups (digest BLOB PRIMARY KEY, split INTEGER NOT NULL, file TEXT NOT NULL,
    line INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE faults (number INTEGER PRIMARY KEY, document TEXT NOT NULL);
CREATE TABLE overlaps (row INTEGER PRIMARY KEY, other INTEGER NOT NULL, similarity REAL NOT NULL);
"""


def workbench_for(folder: Path, bands: Bands | None, asked: str) -> "Workbench":
    """The workbench of what is asked for; one that was begun for something else is begun anew."""
    workbench = Workbench(folder, bands)
    if workbench.value("asked", asked) != asked:
        workbench.close()
        (folder / "work.sqlite").unlink()
        shutil.rmtree(workbench.folder)
        workbench = Workbench(folder, bands)
    workbench.keep("asked", asked)
    return workbench


class Workbench:
    """One process at a time has it; ``commit`` makes what was done last."""

    def __init__(self, folder: Path, bands: Bands | None) -> None:
        self.folder = folder / "staged"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        is_new = not (folder / "work.sqlite").exists()
        os.environ["SQLITE_TMPDIR"] = str(folder)
        self.rows = sqlite3.connect(folder / "work.sqlite", isolation_level=None)
        self.rows.execute("PRAGMA journal_mode=DELETE")
        self.rows.execute("PRAGMA synchronous=NORMAL")
        self.rows.execute("PRAGMA temp_store=FILE")
        self.rows.execute("BEGIN")
        if is_new or not self.rows.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone():
            self._make(bands)
        self._staged: dict[int, BinaryIO] = {}
        self._names: dict[str, int] = {
            name: number for number, name in self.rows.execute("SELECT number, name FROM splits")
        }
        self._bytes: dict[int, int] = dict(self.rows.execute("SELECT number, bytes FROM splits"))
        for name, number in self._names.items():
            self._open(number, name)

    def _make(self, bands: Bands | None) -> None:
        for statement in _SCHEMA.split(";"):
            self.rows.execute(statement)
        for band in range(bands.count if bands else 0):
            self.rows.execute(f"CREATE TABLE band_{band} (key INTEGER NOT NULL, row INTEGER NOT NULL)")
        self.rows.execute("COMMIT")
        self.rows.execute("BEGIN")

    def _open(self, number: int, name: str) -> None:
        file = (self.folder / lines_file(name)).open("ab")
        file.truncate(self._bytes[number])
        self._staged[number] = file

    # What is known
    def value(self, name: str, default: Any = None) -> Any:
        found = self.rows.execute("SELECT value FROM state WHERE name = ?", [name]).fetchone()
        return default if found is None else json.loads(found[0])

    def keep(self, name: str, value: Any) -> None:
        self.rows.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", [name, json.dumps(value)])

    @property
    def place(self) -> Place:
        return Place(**self.value("place", {}))

    @property
    def splits(self) -> dict[str, int]:
        """Name -> number."""
        return dict(self._names)

    def rows_in(self) -> dict[int, int]:
        """The number of a split -> how many rows it has."""
        return dict(self.rows.execute("SELECT split, COUNT(*) FROM rows GROUP BY split"))

    def add_split(self, name: str) -> int:
        number = len(self._names)
        self.rows.execute("INSERT INTO splits VALUES (?, ?, 0)", [number, name])
        self._names[name], self._bytes[number] = number, 0
        self._open(number, name)
        return number

    def stage(self, split: int, line: bytes) -> int:
        """Write a row behind the others of its split; where it begins."""
        begins = self._bytes[split]
        self._staged[split].write(line)
        self._bytes[split] += len(line)
        return begins

    def staged_line(self, row: int) -> bytes:
        split, begins, length = self.rows.execute(
            "SELECT split, begins, length FROM rows WHERE number = ?", [row]
        ).fetchone()
        self._staged[split].flush()
        with (self.folder / lines_file(self.name_of(split))).open("rb") as file:
            return os.pread(file.fileno(), length, begins)

    def name_of(self, split: int) -> str:
        return next(name for name, number in self._names.items() if number == split)

    # Faults
    def complain(self, fault: RowFault) -> None:
        """Count a fault, and keep the first ones."""
        number = self.value("faults", 0)
        if number < MOST_FAULTS:
            self.rows.execute("INSERT INTO faults VALUES (?, ?)", [number, fault.model_dump_json()])
        self.keep("faults", number + 1)

    def faults(self) -> Iterator[RowFault]:
        for (document,) in self.rows.execute("SELECT document FROM faults ORDER BY number"):
            yield RowFault.model_validate_json(document)

    def commit(self, place: Place | None = None) -> None:
        """Make what was done last: first the files, then the rows that say how far they reach."""
        for file in self._staged.values():
            file.flush()
            os.fsync(file.fileno())
        for number, length in self._bytes.items():
            self.rows.execute("UPDATE splits SET bytes = ? WHERE number = ?", [length, number])
        if place is not None:
            self.keep("place", vars(place))
        self.rows.execute("COMMIT")
        self.rows.execute("BEGIN")

    def close(self) -> None:
        for file in self._staged.values():
            file.close()
        self.rows.close()
