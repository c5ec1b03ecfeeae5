"""A stored version of a dataset, read row by row: nothing of it is ever in memory as a whole.

Sizes are compared with the manifest when the folder is opened, and digests when a split is first read from; a row that
is not what was stored is an error that names file, line and remedy, and never another row.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from engine.spec.dataset_files import DATASET_MANIFEST, OFFSET, DatasetManifest, StoredSplit
from engine.spec.dataset_row import DatasetRow

_CHUNK_BYTES = 2**20
REMEDY = "import the dataset again, as a new version"


class DamagedDataset(Exception):
    """What lies in the folder is not what was stored."""

    def __init__(self, file: Path, how: str, *, line: int | None = None, remedy: str = REMEDY) -> None:
        self.file, self.line, self.remedy = file, line, remedy
        place = file.name if line is None else f"{file.name}, line {line}"
        super().__init__(f"{place}: {how}; {remedy}")


class NoSuchRow(LookupError):
    """The version has no such split, or the split no such row."""


class DatasetReader:
    """Each row is read by its own place, from files that stay open until ``close``."""

    def __init__(self, folder: Path, *, verifies: bool = True) -> None:
        """``verifies``: digests are compared too, which reads a split once before its first row is given."""
        self.folder = folder
        self.manifest = _manifest(folder)
        self._verifies = verifies
        self._files: dict[str, tuple[int, int]] = {}
        for name, size in self.manifest.sizes.items():
            _compare_size(folder / name, size)

    @property
    def splits(self) -> list[str]:
        return [split.name for split in self.manifest.splits]

    def len(self, split: str) -> int:
        """Raises NoSuchRow for a split that the version does not have."""
        return self._split(split).rows

    def row(self, split: str, number: int) -> DatasetRow:
        """Row ``number`` of the split, from 0.  Raises NoSuchRow and DamagedDataset."""
        stored = self._split(split)
        line = self.line(split, number)
        try:
            return DatasetRow.model_validate_json(line)
        except ValidationError as error:
            reason = str(error.errors()[0]["msg"])[:200]
            raise DamagedDataset(self.folder / stored.lines_file, f"is no row ({reason})", line=number + 1) from error

    def line(self, split: str, number: int) -> bytes:
        """The row as it is stored, without its newline.  Raises NoSuchRow and DamagedDataset."""
        stored = self._split(split)
        if not 0 <= number < stored.rows:
            raise NoSuchRow(f"{split} has {stored.rows} rows, and none has the number {number}; count them from 0")
        lines, offsets = self._opened(stored)
        begin = self._offset(stored, offsets, number)
        end = self._offset(stored, offsets, number + 1) if number + 1 < stored.rows else stored.bytes
        data = os.pread(lines, end - begin, begin) if 0 <= begin < end <= stored.bytes else b""
        if len(data) != end - begin or not data.endswith(b"\n") or b"\n" in data[:-1]:
            raise DamagedDataset(self.folder / stored.lines_file, "does not begin and end there", line=number + 1)
        return data[:-1]

    def rows(self, split: str, first: int = 0) -> Iterator[DatasetRow]:
        """From row ``first`` to the end of the split."""
        return (self.row(split, number) for number in range(first, self.len(split)))

    def close(self) -> None:
        for descriptors in self._files.values():
            for descriptor in descriptors:
                os.close(descriptor)
        self._files.clear()

    def __enter__(self) -> "DatasetReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _split(self, name: str) -> StoredSplit:
        stored = self.manifest.split(name)
        if stored is None:
            raise NoSuchRow(f"there is no split {name!r}; the version has {', '.join(self.splits)}")
        return stored

    def _opened(self, split: StoredSplit) -> tuple[int, int]:
        """Descriptors of its lines and its offsets."""
        if split.name not in self._files:
            lines, offsets = self.folder / split.lines_file, self.folder / split.offsets_file
            if self._verifies:
                _compare_digest(lines, split.sha256)
                _compare_digest(offsets, split.offsets_sha256)
            self._files[split.name] = _descriptor(lines), _descriptor(offsets)
        return self._files[split.name]

    def _offset(self, split: StoredSplit, descriptor: int, number: int) -> int:
        entry = os.pread(descriptor, OFFSET.size, number * OFFSET.size)
        if len(entry) != OFFSET.size:
            raise DamagedDataset(self.folder / split.offsets_file, "has become shorter", line=number + 1)
        return int(OFFSET.unpack(entry)[0])


def open(folder: Path) -> DatasetReader:
    """The version that the folder holds.  Raises DamagedDataset."""
    return DatasetReader(folder)


def _manifest(folder: Path) -> DatasetManifest:
    file = folder / DATASET_MANIFEST
    try:
        return DatasetManifest.model_validate_json(file.read_bytes())
    except OSError as error:
        remedy = "name the folder of a stored version, which holds dataset.json"
        raise DamagedDataset(file, f"cannot be read: {error.strerror}", remedy=remedy) from error
    except ValidationError as error:
        raise DamagedDataset(file, "is no manifest that is known here") from error


def _compare_size(file: Path, size: int) -> None:
    try:
        found = file.stat().st_size
    except OSError as error:
        raise DamagedDataset(file, f"cannot be read: {error.strerror}") from error
    if found != size:
        raise DamagedDataset(file, f"has {found} bytes, and had {size} when it was stored")


def _compare_digest(file: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    descriptor = _descriptor(file)
    try:
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            digest.update(chunk)
    finally:
        os.close(descriptor)
    if digest.hexdigest() != sha256:
        raise DamagedDataset(file, "has another content than when it was stored")


def _descriptor(file: Path) -> int:
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DamagedDataset(file, f"cannot be read: {error.strerror}") from error
