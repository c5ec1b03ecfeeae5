"""What /proc tells of the guest that asks: who it is, where it stands, what its descriptors are."""

import os
import posixpath
import re
import stat
import time
from contextlib import suppress
from typing import NamedTuple

from sandboxes.observation import kernel

AT_FDCWD = -100
LINKS = 8
STEPS = 4096
"""The most names of one path that are looked up one after the other: those of its links count as well."""
ARGUMENTS_BYTES = 64 * 1024
"""The most that is read of a process's arguments, and of its environment."""
HANDLE = os.O_PATH | os.O_CLOEXEC
MOST_DESCRIPTORS = 64
"""The most descriptors of one process that are looked at."""
DELETED = " (deleted)"
SOCKET_KINDS = ("unix", "inet", "other")
NETWORK_SOCKETS = ("TCP", "UDP", "MPTCP", "PING", "RAW")


_PIPE = re.compile(r"pipe:\[(\d+)\]")
_LEADS_ON = re.compile(r"/proc/[^/]+/(?:task/\d+/)?(?:root|cwd|exe|fd|map_files|ns)(?:/.*)?", re.S)
"""Paths of /proc that lead to what a process has; what else is there lies there."""
TGID, PPID, NSTGID, NSPID = b"\nTgid:\t", b"\nPPid:\t", b"\nNStgid:\t", b"\nNSpid:\t"
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


class Running(NamedTuple):
    """What a process runs."""

    command: bytes
    """What it says its arguments are."""
    program: str


ENDED = Running(b"", "")
"""What a process runs that has ended, and for which nobody has waited yet."""


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

    def runs(self) -> Running:
        """Return what its process runs, which a program that is started replaces."""
        try:
            command = kernel.content(f"/proc/{self.pid}/cmdline", ARGUMENTS_BYTES)
        except OSError:
            command = b""
        return Running(command, self.program)

    def environment(self) -> bytes:
        """Return what its process was started with.  Raises ``OSError``."""
        return kernel.content(f"/proc/{self.pid}/environ", ARGUMENTS_BYTES)

    def path(self, folder: int, raw: bytes, *, follow: bool) -> tuple[str, bool]:
        """Absolute and resolved as far as it exists, and whether it does.

        In a folder whose path is longer than the kernel says, as it was given.
        """
        given = os.fsdecode(raw)
        start = f"/proc/{self.thread}/" + ("cwd" if folder == AT_FDCWD else f"fd/{folder}")
        if not given.startswith("/"):
            above = link(start).removesuffix(DELETED)
            if not above:
                return self._walked(start, given, follow=follow)
            given = posixpath.join(above, given)
        if given.startswith("/proc/") and "/.." not in given and (within := posixpath.normpath(given)) != "/proc":
            # Of process 1 what is tried is told, and not where it would lead.
            if not _LEADS_ON.fullmatch(within) or within.startswith(("/proc/1/cwd", "/proc/1/fd", "/proc/1/exe")):
                return self._numbered(within), True
            return self._walked("", given, follow=follow)
        found = inside(self._root, given, follow=follow)
        return self._walked("", given, follow=follow) if found is None else found

    def _numbered(self, path: str) -> str:
        """A path of /proc with the process's number in it, and without its threads'."""
        parts = path.split("/")
        if parts[2] in ("self", "thread-self"):
            parts[2] = str(self.inside)
        if len(parts) > 4 and parts[3] == "task":
            del parts[3:5]
        return "/".join(parts)

    def _walked(self, start: str, path: str, *, follow: bool) -> tuple[str, bool]:
        """As ``path``, name by name: /proc/self is not to us what it is to the guest.

        ``start``: where a relative path begins, for us to open.
        """
        missing = posixpath.normpath(path) if path.startswith("/") else f"./{posixpath.normpath(path)}", False
        try:
            place = os.dup(self._root) if path.startswith("/") else os.open(start, HANDLE)
        except OSError:
            return missing
        names = _names(path)
        try:
            for _ in range(STEPS):
                if not names:
                    return self._name(place) or missing[0], True
                name = names.pop()
                try:
                    place = self._step(place, name, names, follow=follow)
                except FileNotFoundError:
                    above = "" if names else self._name(place)
                    return (posixpath.join(above, name), False) if above else missing
                if len(names) > STEPS:
                    break
            return missing
        except OSError:
            return missing
        finally:
            os.close(place)

    def _step(self, place: int, name: str, names: list[str], *, follow: bool) -> int:
        """Return a handle of what has this name at ``place``, which is closed then; a link puts its own names first.

        Raises ``OSError``; then ``place`` stays open.
        """
        if name == ".." and os.path.samestat(os.fstat(place), os.fstat(self._root)):
            return place
        found = os.open(name, HANDLE | os.O_NOFOLLOW, dir_fd=place)
        try:
            if stat.S_ISLNK(os.fstat(found).st_mode) and (follow or names):
                target = self._target(found)
                if target is None:
                    found, passed = os.open(name, HANDLE, dir_fd=place), found
                else:
                    names += _names(target)
                    found, passed = os.dup(self._root if target.startswith("/") else place), found
                os.close(passed)
        except OSError:
            os.close(found)
            raise
        os.close(place)
        return found

    def _target(self, found: int) -> str | None:
        """The target of a symbolic link; None for those of processes, which lead to what they say and further."""
        where = link(f"/proc/self/fd/{found}")
        if where == "/proc/self":
            return str(self.inside)
        if where == "/proc/thread-self":
            thread = _number(kernel.content(f"/proc/{self.thread}/status"), NSPID)
            return f"{self.inside}/task/{thread}"
        return None if _LEADS_ON.fullmatch(where) else os.readlink("", dir_fd=found)

    def _name(self, place: int) -> str:
        """Nothing where it is longer than the kernel says."""
        found = executable(link(f"/proc/self/fd/{place}"))
        return self._numbered(found) if found.startswith("/proc/") else found


def _names(path: str) -> list[str]:
    """The last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def executable(found: str) -> str:
    """``memfd:NAME`` for memory."""
    plain = found.removesuffix(DELETED)
    return plain[1:] if plain.startswith("/memfd:") else plain


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


def inside(root: int, path: str, *, follow: bool) -> tuple[str, bool] | None:
    """As the sandbox sees it, links followed as far as they exist, and whether it exists.

    None if its folder is not found, or has links of the kernel's own: only the guest can follow those.
    """
    for _ in range(LINKS):
        found = _handle_path(root, path, follow=follow)
        if found is not None:
            return found, True
        head, _, tail = path.rstrip("/").rpartition("/")
        parent = _handle_path(root, head or "/", follow=True)
        if parent is None or parent.startswith("/proc/") or tail in ("", ".", ".."):
            return None
        target = _target(root, posixpath.join(parent, tail)) if follow else None
        if target is None:
            return posixpath.join(parent, tail), False
        path = posixpath.join(parent, target)  # a link whose target is yet to be made
    return None


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
