"""A folder that is there as a whole or not at all, and what is said of one that the disk has spoilt since."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DamagedFile(Exception):
    """What was saved cannot be read back; the message says what and why.  Another attempt would meet it again."""


@contextmanager
def read_back(path: Path) -> Iterator[None]:
    """Around the reading of ``path``.  Raises DamagedFile for whatever its format raises of a damaged file."""
    try:
        yield
    except Exception as error:
        said = (str(error).splitlines() or [""])[0][:200]
        raise DamagedFile(f"{path} cannot be read ({type(error).__name__}: {said})") from error


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into; it becomes ``folder``, fsynced and in one rename, unless something is raised.

    Raises OSError if ``folder`` exists and is not empty.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    for path in [*partial.rglob("*"), partial]:
        _fsync(path)
    partial.rename(folder)
    _fsync(folder.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
