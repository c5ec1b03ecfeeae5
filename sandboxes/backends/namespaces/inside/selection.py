"""Chosen files of /work, read to be copied into another sandbox, and written as they came from one.

Only regular files and folders: a link, a device, a socket or a fifo is refused, never followed or opened.  Every step
down is made from an open folder and follows no link, so nothing outside of /work is read or written, whatever living
processes do meanwhile.  A hard link is a file of its own in the copy.  Of permissions only "may be executed" is kept.
"""

import errno
import os
import stat

from sandboxes.backends.namespaces.inside import frames
from sandboxes.backends.namespaces.inside.files import HOME, OPEN_SAFELY
from sandboxes.backends.namespaces.inside.trees import OPEN_FOLDER

DEEPEST = 64
LONGEST_PATH_BYTES = 1024
LARGEST_TEXT = 64 * 1024
FILLED = frozenset({"node_modules", "__pycache__", "venv", "site-packages", "target"})
"""Folders that tools fill."""
Taken = dict[str, "tuple[int, bytes]"]


class Refused(Exception):
    """A path that is not copied; ``payload`` says which one and why."""

    def __init__(self, reason: str, path: str) -> None:
        shown = path.encode("utf-8", "backslashreplace")[:LONGEST_PATH_BYTES]
        self.payload = bytes([frames.REASONS.index(reason)]) + shown


class Allowance:
    """What may still be taken."""

    def __init__(self, entries: int, size_bytes: int) -> None:
        self.entries = entries
        self.bytes = size_bytes

    def take(self, path: str, size_bytes: int) -> None:
        self.entries -= 1
        self.bytes -= size_bytes
        if self.entries < 0:
            raise Refused("too many", path)
        if self.bytes < 0:
            raise Refused("too large", path)


class Partial(Allowance):
    """What may still be looked at of a project: text that people write."""

    def leaves_out(self, path: str, size_bytes: int) -> bool:
        """Whether this name is passed over; it counts all the same, so that the work is bounded."""
        self.entries -= 1
        name = path.rsplit("/", 1)[-1]
        too_much = self.entries < 0 or size_bytes > min(LARGEST_TEXT, self.bytes)
        return too_much or (size_bytes < 0 and (name.startswith(".") or name in FILLED))

    def take(self, path: str, size_bytes: int) -> None:
        self.bytes -= size_bytes
        if self.bytes < 0:
            raise Refused("too large", path)


# -- reading --------------------------------------------------------------------------------------


def taken(paths: list[str], most_entries: int, most_bytes: int, partial: bool = False) -> bytes:
    """All of ``paths`` (relative to /work, "" is all of it), packed.  Raises ``Refused`` and then has read nothing.

    ``partial``: what would be refused is left out, and so is what tools fill; at most ``most_entries`` names are
    looked at.
    """
    allowance, found = (Partial if partial else Allowance)(most_entries, most_bytes), Taken()
    for path in paths:
        try:
            _choose(path, allowance, found)
        except Refused:
            if not partial:
                raise
    return b"".join(frames.pack_entry(path, kind, content) for path, (kind, content) in sorted(found.items()))


def _choose(path: str, allowance: Allowance, found: Taken) -> None:
    try:
        folder, above = os.open(HOME, OPEN_FOLDER), ""
    except PermissionError:
        raise Refused("closed", HOME) from None
    try:
        *folders, name = path.split("/")
        for part in folders:
            above += part
            below = _folder(folder, part, above)
            os.close(folder)
            folder, above = below, above + "/"
        if name:
            _take(folder, name, path, allowance, found, 0)
        else:
            _take_below(os.dup(folder), "", allowance, found, 0)
    except FileNotFoundError:
        raise Refused("missing", path) from None
    except PermissionError:
        raise Refused("closed", above or HOME) from None
    finally:
        os.close(folder)


def _folder(parent: int, name: str, path: str) -> int:
    try:
        return os.open(name, OPEN_FOLDER, dir_fd=parent)
    except PermissionError:
        raise Refused("closed", path) from None
    except FileNotFoundError:
        raise
    except OSError:  # a link is none, for who follows none
        raise Refused(_why_not(parent, name), path) from None


def _why_not(parent: int, name: str) -> str:
    return "link" if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode) else "other"


def _take(parent: int, name: str, path: str, allowance: Allowance, found: Taken, depth: int) -> None:
    if path in found:
        return
    if depth > DEEPEST or len(path.encode("utf-8", "surrogateescape")) > LONGEST_PATH_BYTES:
        raise Refused("too deep", path)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Refused("unreadable name", path) from None
    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        folder = _folder(parent, name, path)
        allowance.take(path, 0)
        found[path] = (frames.FOLDER, b"")
        _take_below(folder, path + "/", allowance, found, depth + 1)
    elif stat.S_ISREG(mode):
        found[path] = _file(parent, name, path, allowance)
    else:
        raise Refused("link" if stat.S_ISLNK(mode) else "other", path)


def _take_below(folder: int, prefix: str, allowance: Allowance, found: Taken, depth: int) -> None:
    """Closes ``folder``."""
    try:
        names = os.listdir(folder)
        if len(names) > allowance.entries and not isinstance(allowance, Partial):
            raise Refused("too many", prefix)
        for name in names:
            try:
                if isinstance(allowance, Partial):
                    _take_some(folder, name, prefix + name, allowance, found, depth)
                else:
                    _take(folder, name, prefix + name, allowance, found, depth)
            except FileNotFoundError:
                continue  # somebody else removed it meanwhile
    except PermissionError:
        raise Refused("closed", prefix) from None
    finally:
        os.close(folder)


def _take_some(parent: int, name: str, path: str, allowance: Partial, found: Taken, depth: int) -> None:
    if allowance.entries < 0:
        return
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if allowance.leaves_out(path, -1 if stat.S_ISDIR(status.st_mode) else status.st_size):
        return
    try:
        _take(parent, name, path, allowance, found, depth)
    except Refused:
        return


def _file(parent: int, name: str, path: str, allowance: Allowance) -> "tuple[int, bytes]":
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | OPEN_SAFELY, dir_fd=parent)
    except FileNotFoundError:
        raise
    except PermissionError:
        raise Refused("closed", path) from None
    except OSError:
        raise Refused("other", path) from None  # it is no file any more
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("other", path)
        allowance.take(path, found.st_size)
        with open(fd, "rb", closefd=False) as file:
            content = file.read(found.st_size)
    finally:
        os.close(fd)
    return (frames.PROGRAM if found.st_mode & stat.S_IXUSR else frames.FILE), content


# -- writing --------------------------------------------------------------------------------------


def put(entries: "list[tuple[str, bytes | None, bool]]") -> None:
    """Write files, and make folders (content None).  What is there is replaced, and never written through.

    Raises ``Refused`` where a link or a file is in the place of a folder, and ``OSError``.
    """
    for path, content, executable in entries:
        *folders, name = path.split("/")
        folder, above = os.open(HOME, OPEN_FOLDER), ""
        try:
            for part in folders if content is not None else [*folders, name]:
                above += part
                below = _made(folder, part, above)
                os.close(folder)
                folder, above = below, above + "/"
            if content is not None:
                _write(folder, name, content, executable)
        finally:
            os.close(folder)


def _made(parent: int, name: str, path: str) -> int:
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return _folder(parent, name, path)  # whatever it is, it is not followed
    return _folder(parent, name, path)


def _write(folder: int, name: str, content: bytes, executable: bool) -> None:
    _remove(folder, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | OPEN_SAFELY
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        rest = memoryview(content)
        while rest:
            written = os.write(fd, rest)
            if not written:
                raise OSError(errno.ENOSPC, "no room")
            rest = rest[written:]
        os.fchmod(fd, 0o755 if executable else 0o644)
    finally:
        os.close(fd)


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
