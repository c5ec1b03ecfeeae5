"""The files of a sandbox at one moment, kept in the agent's memory, and put back.

Every step down is made from an open folder and follows no link, so nothing outside of /work and
/tmp is read or written, whatever living processes do meanwhile.  Kept are names, contents,
permissions, and the targets of links; not times, extended attributes, sockets, and which names
are hard links of each other (a file that did not change keeps them).
"""

import errno
import os
import stat

from sandboxes.backends.namespaces.inside.files import OPEN_SAFELY, WRITABLE

MOST_ENTRIES = 10_000
DEEPEST = 64
PAGE_BYTES = 4096
CHUNK_BYTES = 2**20
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Node:
    """A folder (``content`` is a dict of names), a file (its bytes), a link (its target) or a fifo (nothing)."""

    __slots__ = ("content", "mode")

    def __init__(self, mode: int, content: object) -> None:
        self.mode = mode
        self.content = content

    @property
    def kind(self) -> int:
        return stat.S_IFMT(self.mode)


class Room:
    """What may still be kept of one file system: as much as fits on it when it is put back, holes filled."""

    def __init__(self, size_bytes: int) -> None:
        self.bytes = size_bytes
        self.entries = MOST_ENTRIES

    def take(self, size_bytes: int) -> None:
        self.entries -= 1
        self.bytes -= -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        if self.bytes < 0:
            raise OSError(errno.EFBIG, "too large to be kept")
        if self.entries < 0:
            raise OSError(errno.EMFILE, "too many to be kept")


def set_mode(folder: int, name: str, mode: int) -> None:
    """``chmod`` that follows no link: Linux has none of its own."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(mode))
    finally:
        os.close(fd)


# -- keeping --------------------------------------------------------------------------------------


def taken(size_bytes: int, former: dict[str, Node]) -> dict[str, Node]:
    """All files of the sandbox; contents that are as in ``former`` share its memory.

    Raises ``OSError``: EFBIG or EMFILE for too much, ENAMETOOLONG for folders too deep.
    """
    return {root: _folder_taken(os.open(root, OPEN_FOLDER), Room(size_bytes), former.get(root), 0) for root in WRITABLE}


def _folder_taken(fd: int, room: Room, former: Node | None, depth: int) -> Node:
    """Closes ``fd``."""
    try:
        if depth > DEEPEST:
            raise OSError(errno.ENAMETOOLONG, "folders too deep to be kept")
        before = former.content if former and isinstance(former.content, dict) else {}
        content = {}
        for name in os.listdir(fd):
            try:
                node = _taken(fd, name, room, before.get(name), depth)
            except FileNotFoundError:
                continue  # somebody else removed it meanwhile
            if node:
                content[name] = node
        return Node(os.fstat(fd).st_mode, content)
    finally:
        os.close(fd)


def _taken(parent: int, name: str, room: Room, former: Node | None, depth: int) -> Node | None:
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    room.take(found.st_size if stat.S_ISREG(found.st_mode) else 0)
    if stat.S_ISLNK(found.st_mode):
        return Node(found.st_mode, os.readlink(name, dir_fd=parent))
    if stat.S_ISFIFO(found.st_mode):
        return Node(found.st_mode, None)
    if stat.S_ISDIR(found.st_mode):
        readable, flags = 0o500, OPEN_FOLDER
    elif stat.S_ISREG(found.st_mode):
        readable, flags = 0o400, os.O_RDONLY | os.O_NOFOLLOW | OPEN_SAFELY
    else:
        return None
    barred = found.st_mode & readable != readable
    if barred:
        set_mode(parent, name, 0o700)
    try:
        fd = os.open(name, flags, dir_fd=parent)
        node = _folder_taken(fd, room, former, depth + 1) if flags == OPEN_FOLDER else _file_taken(fd, room, former)
    finally:
        if barred:
            set_mode(parent, name, found.st_mode)
    return Node(found.st_mode, node.content)


def _file_taken(fd: int, room: Room, former: Node | None) -> Node:
    """Closes ``fd``."""
    try:
        found = os.fstat(fd)
        content = _read(fd, found.st_size + room.bytes)
        grown = len(content) - found.st_size
        if grown > 0:
            room.take(grown)
    finally:
        os.close(fd)
    return Node(found.st_mode, former.content if former and former.content == content else content)


def _read(fd: int, limit_bytes: int) -> bytes:
    parts, size = [], 0
    while size <= limit_bytes and (part := os.read(fd, CHUNK_BYTES)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def weight_bytes(nodes: list[Node], counted: set[int]) -> int:
    """Return what contents take in memory, each counted once: ``counted`` is the ids of those counted before."""
    total = 0
    for node in nodes:
        if isinstance(node.content, dict):
            total += weight_bytes(list(node.content.values()), counted)
        elif isinstance(node.content, bytes) and id(node.content) not in counted:
            counted.add(id(node.content))
            total += len(node.content)
    return total


# -- putting back ---------------------------------------------------------------------------------


def put_back(roots: dict[str, Node]) -> None:
    """Make the file systems what they were.  First what has to go goes, so that what comes back finds room."""
    for step in (_clear, _fill):
        for root, node in roots.items():
            fd = os.open(root, OPEN_FOLDER)
            try:
                os.fchmod(fd, stat.S_IMODE(node.mode) | 0o700)
                step(fd, node.content, 0)  # type: ignore[arg-type]  # a root is a folder
                os.fchmod(fd, stat.S_IMODE(node.mode))
            finally:
                os.close(fd)


def _clear(folder: int, wanted: dict[str, Node], depth: int) -> None:
    """Remove what is not wanted; empty the files that have another content."""
    if depth > DEEPEST:
        raise OSError(errno.ENAMETOOLONG, "folders too deep")
    for name in os.listdir(folder):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        node = wanted.get(name)
        if node is not None and node.kind != stat.S_IFMT(mode):
            node = None
        if not stat.S_ISLNK(mode) and mode & 0o700 != 0o700:
            set_mode(folder, name, 0o700)
        if stat.S_ISDIR(mode):
            _clear_below(folder, name, node, depth)
        elif node is None or (stat.S_ISLNK(mode) and os.readlink(name, dir_fd=folder) != node.content):
            os.unlink(name, dir_fd=folder)
        elif stat.S_ISREG(mode):
            _empty_unless(folder, name, node.content)  # type: ignore[arg-type]  # a file has bytes


def _clear_below(folder: int, name: str, node: Node | None, depth: int) -> None:
    fd = os.open(name, OPEN_FOLDER, dir_fd=folder)
    try:
        _clear(fd, node.content if node else {}, depth + 1)  # type: ignore[arg-type]  # a folder
    finally:
        os.close(fd)
    if node is None:
        os.rmdir(name, dir_fd=folder)


def _empty_unless(folder: int, name: str, content: bytes) -> None:
    fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | OPEN_SAFELY, dir_fd=folder)
    try:
        if os.fstat(fd).st_size != len(content) or _read(fd, len(content)) != content:
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def _fill(folder: int, wanted: dict[str, Node], depth: int) -> None:
    present = set(os.listdir(folder))
    for name, node in wanted.items():
        if node.kind == stat.S_IFLNK:
            if name not in present:
                os.symlink(node.content, name, dir_fd=folder)  # type: ignore[arg-type]  # its target
        elif node.kind == stat.S_IFIFO:
            if name not in present:
                os.mkfifo(name, 0o600, dir_fd=folder)
            set_mode(folder, name, node.mode)
        else:
            _fill_one(folder, name, node, name in present, depth)


def _fill_one(folder: int, name: str, node: Node, is_there: bool, depth: int) -> None:
    flags = OPEN_FOLDER
    if node.kind == stat.S_IFREG:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | OPEN_SAFELY
    elif not is_there:
        os.mkdir(name, 0o700, dir_fd=folder)
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        if isinstance(node.content, dict):
            _fill(fd, node.content, depth + 1)
        elif os.fstat(fd).st_size == 0:
            _write(fd, node.content)  # type: ignore[arg-type]  # a file has bytes
        os.fchmod(fd, stat.S_IMODE(node.mode))
    finally:
        os.close(fd)


def _write(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]
