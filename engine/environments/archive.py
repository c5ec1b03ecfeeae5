"""A tar that somebody else has packed, perhaps to harm: plain files and folders come out of it, and nothing else.

Memory does not grow with the files: a part of one is held at a time.
"""

import errno
import os
import stat
import tarfile
from pathlib import Path
from typing import IO

from engine.spec.problems import Problem

MOST_ENTRIES = 200_000
"""The most entries of an archive."""
UNREADABLE = (tarfile.TarError, ValueError, OverflowError, RecursionError, MemoryError, OSError)
"""What reading something that is no tar may raise."""
_CHUNK_BYTES = 2**20


def unpacked(source: Path, folder: Path) -> list[Problem]:
    """Write the plain files of a tar below ``folder``; return everything that is none.  Raises as tarfile does."""
    folder.mkdir(mode=0o700, parents=True)
    problems, seen, behind = list[Problem](), 0, -1
    with source.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
        size = source.stat().st_size
        while (member := archive.next()) is not None:
            seen += 1
            if seen > MOST_ENTRIES or member.offset_data <= behind:
                raise tarfile.ReadError(f"more than {MOST_ENTRIES} entries, or entries within entries")
            behind = member.offset_data
            if (fault := _fault_of(member, size) or _write(member, file, folder)) is not None:
                problems.append(Problem(_path(member)[:200], member.name[:200], *fault))
    return problems


def _path(member: tarfile.TarInfo) -> str:
    return "/".join(part for part in member.name.split("/") if part not in ("", "."))


def _fault_of(member: tarfile.TarInfo, size: int) -> tuple[str, str] | None:
    """What is wrong with an entry, and the remedy."""
    if member.name.startswith("/") or ".." in member.name.split("/") or "\0" in member.name:
        return "it lies outside of the archive", "put plain files and folders into it, and nothing else"
    if member.isdir():
        return None
    if member.issym() or member.islnk():
        return "a link, which may lead anywhere", "put a copy of the file in its place"
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        return "no regular file (a device, a fifo or a file with holes)", "remove it"
    if member.mode & (stat.S_ISUID | stat.S_ISGID):
        return "set-user-id or set-group-id", "chmod ug-s it"
    if member.size < 0 or member.offset_data + member.size > size:
        return "the archive ends before it does", "pack it again, and upload all of it"
    return None


def _write(member: tarfile.TarInfo, file: IO[bytes], folder: Path) -> tuple[str, str] | None:
    """Nothing in ``folder`` is a link, so no path of it leads out of it."""
    place = folder / _path(member)
    try:
        if member.isdir():
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif place != folder:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _copy(file, member, place)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        return f"it cannot be written: {error.strerror}", "give every file one name of its own, of 255 bytes at most"
    return None


def _copy(file: IO[bytes], member: tarfile.TarInfo, place: Path) -> None:
    file.seek(member.offset_data)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(place, flags, 0o700 if member.mode & stat.S_IXUSR else 0o600), "wb") as written:
        left = member.size
        while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
            written.write(chunk)
            left -= len(chunk)
