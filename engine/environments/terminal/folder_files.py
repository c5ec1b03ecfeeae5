"""The files of a task's folder, read as what they are: somebody else's, and perhaps made to harm.

Every step down is made from an open folder and follows no link, so nothing beside the folder is read, whatever is
changed in it meanwhile.  Regular files with one name are read; links, second names, devices, sockets and fifos are
faults, as is more than ``FolderLimits`` allows.  All faults are collected.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engine.spec.problems import Problem

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FolderLimits:
    """How much one task may be."""

    entries: int = 5000
    file_bytes: int = 16 * 2**20
    size_bytes: int = 64 * 2**20
    depth: int = 24
    name_bytes: int = 255


LIMITS = FolderLimits()


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A regular file by its path in the folder, and what was in it when it was read."""

    path: str
    size_bytes: int
    sha256: str
    executable: bool


@dataclass(slots=True)
class FolderListing:
    """What is in a folder; where there are ``faults`` it is not complete."""

    files: list[FolderFile] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    faults: list[Problem] = field(default_factory=list)
    entries: int = 0
    size_bytes: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 of names, permissions to execute and contents, in order of their names."""
        whole = hashlib.sha256()
        for file in sorted(self.files, key=lambda file: file.path):
            whole.update(f"{file.path}\0{int(file.executable)}\0{file.sha256}\n".encode())
        for folder in sorted(self.folders):
            whole.update(f"{folder}/\n".encode())
        return f"sha256:{whole.hexdigest()}"


class TooMuch(Exception):
    """The folder is beyond its limits, which was noted: the rest of it is not looked at."""


def listed(folder: Path, limits: FolderLimits = LIMITS) -> FolderListing:
    """Read all of it.  ``folder`` itself is no link.  Raises ``OSError`` where it is no folder."""
    listing = FolderListing()
    fd = os.open(folder, _FOLDER)
    try:
        _walk(fd, "", 1, listing, limits)
    except TooMuch:
        pass  # it is one of the faults
    finally:
        os.close(fd)
    return listing


def content_of(folder: Path, file: FolderFile) -> bytes:
    """Return what a listed file holds.  Raises ``OSError`` where it is not what it was when it was listed."""
    parts = file.path.split("/")
    fd = os.open(folder, _FOLDER)
    try:
        for part in parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
        with open(os.open(parts[-1], _FILE, dir_fd=fd), "rb") as opened:
            content = opened.read(file.size_bytes + 1)
    finally:
        os.close(fd)
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise OSError(f"{folder.name}/{file.path} is not what it was when the tasks were read: read them again")
    return content


def _walk(fd: int, inside: str, depth: int, listing: FolderListing, limits: FolderLimits) -> None:
    for name, raw in _names(fd):
        path = f"{inside}{name}"
        listing.entries += 1
        if listing.entries > limits.entries:
            _fault(listing, path, f"more than {limits.entries} files and folders", "make the task smaller", stop=True)
        if (misnamed := _name_fault(name, raw, limits)) is not None:
            _fault(listing, path, misnamed, "rename it")
            continue
        found = os.stat(raw, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            if depth >= limits.depth:
                _fault(listing, path, f"folders deeper than {limits.depth}", "put it higher")
                continue
            _below(fd, raw, path, depth, listing, limits)
        elif (fault := _kind_fault(found)) is not None:
            _fault(listing, path, *fault)
        else:
            _read(fd, raw, path, listing, limits)


def _names(fd: int) -> Iterator[tuple[str, bytes]]:
    for raw in sorted(os.fsencode(name) for name in os.listdir(fd)):
        yield raw.decode("utf-8", "backslashreplace"), raw


def _below(fd: int, raw: bytes, path: str, depth: int, listing: FolderListing, limits: FolderLimits) -> None:
    try:
        below = os.open(raw, _FOLDER, dir_fd=fd)
    except OSError as error:
        _fault(listing, path, f"the folder cannot be read ({error.strerror})", "make it readable")
        return
    listing.folders.append(path)
    try:
        _walk(below, f"{path}/", depth + 1, listing, limits)
    finally:
        os.close(below)


def _name_fault(name: str, raw: bytes, limits: FolderLimits) -> str | None:
    if len(raw) > limits.name_bytes:
        return f"a name of more than {limits.name_bytes} bytes"
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "a name that is no UTF-8"
    return None if name.isprintable() and "\\" not in name else "a name with control characters or a backslash"


def _kind_fault(found: os.stat_result) -> tuple[str, str] | None:
    if stat.S_ISLNK(found.st_mode):
        return "a symbolic link, which may lead out of the task", "put a copy of the file in its place"
    if not stat.S_ISREG(found.st_mode):
        return "no regular file (a device, a socket or a fifo)", "remove it"
    if found.st_nlink > 1:
        return "a hard link: another name of it may be anywhere", "put a copy of the file in its place"
    if found.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return "set-user-id or set-group-id", "chmod ug-s it"
    return None


def _read(fd: int, raw: bytes, path: str, listing: FolderListing, limits: FolderLimits) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with open(os.open(raw, _FILE, dir_fd=fd), "rb") as file:
            found = os.fstat(file.fileno())
            if (fault := _kind_fault(found)) is not None:  # it was exchanged meanwhile
                _fault(listing, path, *fault)
                return
            if found.st_size > limits.file_bytes:
                _fault(listing, path, f"{found.st_size} bytes, more than {limits.file_bytes}", "make it smaller")
                return
            while size <= limits.file_bytes and (chunk := file.read(CHUNK_BYTES)):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        _fault(listing, path, f"the file cannot be read ({error.strerror})", "make it readable")
        return
    listing.size_bytes += size
    if listing.size_bytes > limits.size_bytes:
        _fault(listing, path, f"more than {limits.size_bytes} bytes in all", "make the task smaller", stop=True)
    executable = bool(found.st_mode & stat.S_IXUSR)
    listing.files.append(FolderFile(path, size, digest.hexdigest(), executable))


def _fault(listing: FolderListing, path: str, message: str, remedy: str, *, stop: bool = False) -> None:
    listing.faults.append(Problem(path, path.rsplit("/", 1)[-1], message, remedy))
    if stop:
        raise TooMuch
