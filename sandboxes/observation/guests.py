"""What /proc tells of the guest that asks: who it is, where it stands, what its descriptors are."""

import os
import posixpath
import re
import time
from contextlib import suppress

from sandboxes.observation import kernel

AT_FDCWD = -100
LINKS = 8
MOST_DESCRIPTORS = 64
"""The most descriptors of one process that are looked at."""
DELETED = " (deleted)"
SOCKET_KINDS = ("unix", "inet", "other")
NETWORK_SOCKETS = ("TCP", "UDP", "MPTCP", "PING", "RAW")


_PIPE = re.compile(r"pipe:\[(\d+)\]")
TGID, PPID, NSTGID = b"\nTgid:\t", b"\nPPid:\t", b"\nNStgid:\t"
"""How lines of /proc/PID/status begin; in the name, which is a guest's and comes first, a new line is escaped."""


def signed(argument: int) -> int:
    """A descriptor's number, of which the kernel reads the lower half of the argument."""
    return (argument & 0xFFFFFFFF) - (1 << 32 if argument & 0x80000000 else 0)


def shown(text: str) -> str:
    """As text that is text everywhere: a byte that is no UTF-8 becomes ``\\xff``."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def link(path: str) -> str:
    """Return where a link of /proc leads; nothing if it leads nowhere."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Guest:
    """A thread that waits for the answer to its question."""

    def __init__(self, thread: int, root: int, agent: int) -> None:
        """``root``: a handle of the sandbox's root; ``agent``: the machine's number of its process 1."""
        self.thread, self._root = thread, root
        status = kernel.content(f"/proc/{thread}/status")
        self.pid, self.parent = _number(status, TGID), _number(status, PPID)
        self.inside = _number(status, NSTGID)
        """Its process's number inside."""
        self.of_agent = self.parent == agent
        self.program = executable(link(f"/proc/{thread}/exe"))
        self.parent_program = "" if self.of_agent else executable(link(f"/proc/{self.parent}/exe"))
        """Nothing where the parent is the agent: then it was started from outside."""
        self.since = time.monotonic()

    def folder(self) -> str:
        return link(f"/proc/{self.thread}/cwd").removesuffix(DELETED)

    def descriptor(self, number: int) -> str:
        return link(f"/proc/{self.thread}/fd/{number}")

    def streams(self) -> list[str]:
        """Return where the links of its standard input, output and error lead; of a socket, its kind."""
        return [_stream(f"/proc/{self.thread}/fd/{number}") for number in range(3)]

    def sockets(self) -> int:
        return network_sockets(self.pid) + (0 if self.of_agent else network_sockets(self.parent))

    def command(self) -> bytes:
        return command(self.thread)

    def path(self, folder: int, raw: bytes, *, follow: bool) -> tuple[str, bool]:
        """Absolute and resolved as far as it exists, and whether it does."""
        given = os.fsdecode(raw)
        if not given.startswith("/"):
            start = self.folder() if folder == AT_FDCWD else self.descriptor(folder).removesuffix(DELETED)
            given = posixpath.join(start, given)
        if "/proc" in given and posixpath.normpath(given).startswith("/proc/"):
            given = self._without_proc(posixpath.normpath(given))
            if given.startswith("/proc/") or not given.startswith("/"):
                return given, True
        return inside(self._root, given, follow=follow)

    def _without_proc(self, path: str) -> str:
        """What /proc/self/cwd and the like lead to; other paths of /proc with the process's number in them."""
        parts = path.split("/")
        own = {"self", "thread-self", str(self.inside)}
        if len(parts) > 3 and parts[3] == "task":
            del parts[3:5]
        where, rest = parts[3:4], parts[4:]
        if where == ["root"]:
            return "/" + "/".join(rest)
        if parts[2] in own:
            if where == ["cwd"]:
                return posixpath.join(self.folder(), *rest)
            if where == ["exe"]:
                return self.program
            if where == ["fd"] and rest and rest[0].isdigit():
                start = self.descriptor(int(rest[0]))
                return posixpath.join(executable(start), *rest[1:])
            parts[2] = str(self.inside)
        return "/".join(parts)


def executable(found: str) -> str:
    """``memfd:NAME`` for memory."""
    plain = found.removesuffix(DELETED)
    return plain[1:] if plain.startswith("/memfd:") else plain


def command(pid: int) -> bytes:
    """Return what a process says its arguments are."""
    try:
        return kernel.content(f"/proc/{pid}/cmdline")
    except OSError:
        return b""


def _number(status: bytes, line: bytes) -> int:
    """The last number of a line of /proc/PID/status: of its own namespace, where there are several."""
    start = status.index(line) + len(line)
    return int(status[start : status.index(b"\n", start)].rpartition(b"\t")[2])


def _stream(descriptor: str) -> str:
    found = link(descriptor)
    return _socket_kind(descriptor) if found.startswith("socket:") else found


def stream_of(found: str) -> tuple[str, int]:
    """One of ``Stream`` (egress.detectors.observed_action), and the number of a pipe or 0; ``found`` by ``streams``."""
    pipe = _PIPE.fullmatch(found)
    return ("pipe", int(pipe[1])) if pipe is not None else (_kind_of(found), 0)


def _kind_of(found: str) -> str:
    if not found:
        return "closed"
    if found in SOCKET_KINDS:
        return found
    if found == "/dev/null":
        return "null"
    if found.startswith(("/dev/pts/", "/dev/tty")):
        return "terminal"
    return "file" if found.startswith("/") else "other"


def _socket_kind(descriptor: str) -> str:
    try:
        name = os.getxattr(descriptor, "system.sockprotoname").decode("ascii", "replace")
    except OSError:
        return "other"
    if name.startswith("UNIX"):
        return "unix"
    return "inet" if name.startswith(NETWORK_SOCKETS) else "other"


def network_sockets(pid: int) -> int:
    """Beside standard input, output and error."""
    found = 0
    with suppress(OSError):
        numbers = [name for name in os.listdir(f"/proc/{pid}/fd") if int(name) > 2]
        for name in numbers[:MOST_DESCRIPTORS]:
            path = f"/proc/{pid}/fd/{name}"
            found += link(path).startswith("socket:") and _socket_kind(path) == "inet"
    return found


def inside(root: int, path: str, *, follow: bool) -> tuple[str, bool]:
    """As the sandbox sees it, links followed as far as they exist; and whether it exists."""
    for _ in range(LINKS):
        found = _handle_path(root, path, follow=follow)
        if found is not None:
            return found, True
        head, _, tail = path.rstrip("/").rpartition("/")
        parent = _handle_path(root, head or "/", follow=True)
        if parent is None or tail in ("", ".", ".."):
            return posixpath.normpath(path), False
        target = _target(root, posixpath.join(parent, tail)) if follow else None
        if target is None:
            return posixpath.join(parent, tail), False
        path = posixpath.join(parent, target)  # a link whose target is yet to be made
    return posixpath.normpath(path), False


def _handle_path(root: int, path: str, *, follow: bool) -> str | None:
    try:
        fd = kernel.opened_in(root, path, follow=follow)
    except (OSError, ValueError):
        return None
    try:
        return link(f"/proc/self/fd/{fd}").removesuffix(DELETED)
    finally:
        os.close(fd)


def _target(root: int, path: str) -> str | None:
    """The target of a symbolic link."""
    try:
        fd = kernel.opened_in(root, path, follow=False)
    except (OSError, ValueError):
        return None
    try:
        return os.readlink("", dir_fd=fd)
    except OSError:
        return None
    finally:
        os.close(fd)
