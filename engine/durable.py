"""Files and folders that are there as a whole or not at all, and what is said of one that the disk has spoilt since."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from engine.disk import fsync


class DamagedFile(Exception):
    """What was saved cannot be read back; the message says what and why.  Another attempt would meet it again."""


@contextmanager
def read_back(path: Path) -> Iterator[None]:
    """Around the reading of ``path``.  Raises DamagedFile for whatever its format raises of a damaged file."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise DamagedFile(f"{path} cannot be read ({type(error).__name__}: {reason})") from error


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Around the writing of ``path``.  Raises OSError for what its format makes of one, e.g. of a full disk."""
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        raise OSError(f"{path}: {first}") from error


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into; it becomes ``folder``, fsynced and in one rename, unless something is raised.

    Then nothing is left of it: a full disk has its space back.  Raises OSError if ``folder`` exists and is not empty.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in [*partial.rglob("*"), partial]:
            fsync(path)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    fsync(folder.parent)
