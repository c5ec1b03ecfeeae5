"""A small file of one model that several processes read and change.

It is read again when it has changed, replaced as a whole, under a lock, and readable for its owner alone.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


class JsonFile(Generic[M]):
    """A file that is not there is what ``model()`` is."""

    def __init__(self, path: Path, model: type[M]) -> None:
        self.path = path
        self._model = model
        self._read: tuple[tuple[int, int, int] | None, M] = (None, model())

    def read(self) -> M:
        """Return what stands in it now; the same object as long as it stays the same, so nobody may change it."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return self._model()
        stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
        if self._read[0] != stamp:
            self._read = (stamp, self._model.model_validate_json(self.path.read_bytes()))
        return self._read[1]

    @contextmanager
    def changing(self) -> Iterator[M]:
        """Yield a copy to change; it is on disk when this ends, unless an exception ends it."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(f"{self.path}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            copy = self.read().model_copy(deep=True)
            yield copy
            new = self.path.with_name(f"{self.path.name}.new")
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as written:
                written.write(copy.model_dump_json(indent=1) + "\n")
                written.flush()
                os.fsync(written.fileno())
            os.replace(new, self.path)
