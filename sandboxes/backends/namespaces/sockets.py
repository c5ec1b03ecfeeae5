"""What the sockets of a sandbox hold in the kernel: TCP and UDP buffers, which no limit on memory counts everywhere.

    buffers of sockets that a guest has    cgroup v1: a limit of their own; v2: part of the sandbox's memory
    size of each                           sysctls of the network namespace; SO_SNDBUF and SO_RCVBUF change nothing
    connections that nobody accepts        belong to no process, and no cgroup: ``SocketGuard`` looks at their number

Unix sockets and pipes are memory of the sandbox like any other.  docs/security.md says what remains.
"""

import _ctypes
import asyncio
import errno
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from sandboxes.descriptors import REMEDIES
from sandboxes.egress.interception.watched import BUFFERS

log = logging.getLogger(__name__)
CLONE_NEWNET = 0x40000000
T = TypeVar("T")
MOST_PENDING = 64
"""Connections that wait to be accepted by a server outside."""
SYSCTLS = BUFFERS | {"core/somaxconn": "128"}
MOST_SOCKETS = 3072
"""One network namespace has no more of all kinds; an unaccepted connection holds some 10 KiB."""
LOOK_S = 0.25
FIRST_LINE_BYTES = 64
PER_SANDBOX_S = 0.001
"""So many sandboxes that a look takes long are looked at more rarely."""


def bound(pid: int) -> None:
    """Bound the buffers in the network of a process.  Raises ``OSError``; only root may."""

    def write_sysctls() -> None:
        for name, value in SYSCTLS.items():
            with open(f"/proc/sys/net/{name}", "w", encoding="ascii") as file:
                file.write(value)

    _in_network(pid, write_sysctls)


def listening(pid: int, port: int) -> socket.socket:
    """A socket that listens on the loopback of a process's network, and nowhere else.  Raises ``OSError``; only root
    may."""
    return _in_network(pid, lambda: _listener(port))


def _listener(port: int) -> socket.socket:
    made = socket.socket()
    try:
        made.bind(("127.0.0.1", port))
        made.listen(MOST_PENDING)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def _in_network(pid: int, work: Callable[[], T]) -> T:
    """What ``work`` gives in the network of a process.

    It runs in a thread that ends with it: which network a thread is in, others never notice.
    """
    results: list[T] = []
    failures: list[OSError] = []

    def entered() -> None:
        try:
            _enter(pid)
            results.append(work())
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=entered, name="sandbox-network")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def _enter(pid: int) -> None:
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.path.samestat(os.stat("/proc/self/ns/net"), os.fstat(fd)):
            raise OSError(0, "the sandbox has the network of its host")
        setns = _ctypes.dlsym(_ctypes.dlopen(None, 2), "setns")  # type: ignore[arg-type]  # None: what is loaded already
        if _ctypes.call_function(setns, (fd, CLONE_NEWNET)) != 0:
            raise OSError(1, "setns was refused")
    finally:
        os.close(fd)


def number(pid: int) -> int:
    """Return how many sockets there are in the network of a process, unaccepted ones included; 0 once it is gone."""
    try:
        file = os.open(f"/proc/{pid}/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, FIRST_LINE_BYTES).split(None, 3)[2])  # "sockets: used 17"
        finally:
            os.close(file)
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
    except OSError as error:
        if error.errno not in (*REMEDIES, errno.EINVAL):  # EINVAL: it is just ending, and has no network any more
            raise
        return 0  # we can open no more files: looked at again soon


class SocketGuard:
    """Looks at all sandboxes of one event loop in which guests may be, one after the other."""

    def __init__(self) -> None:
        self._guarded: dict[int, Callable[[int], object]] = {}
        self._next: asyncio.TimerHandle | None = None

    def add(self, pid: int, on_excess: Callable[[int], object]) -> None:
        """``on_excess`` is called with the number of sockets, once.  A second call for a process changes nothing."""
        self._guarded.setdefault(pid, on_excess)
        self._look_later()

    def remove(self, pid: int) -> None:
        self._guarded.pop(pid, None)
        if not self._guarded and self._next is not None:
            self._next.cancel()  # it would keep the event loop in memory
            self._next = None

    def _look_later(self) -> None:
        if self._next is None and self._guarded:
            after_s = max(LOOK_S, PER_SANDBOX_S * len(self._guarded))
            self._next = asyncio.get_running_loop().call_later(after_s, self._look)

    def _look(self) -> None:
        self._next = None
        for pid in list(self._guarded):
            if (found := number(pid)) > MOST_SOCKETS:
                self._guarded.pop(pid)(found)
        self._look_later()


_guards: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SocketGuard]" = weakref.WeakKeyDictionary()


def socket_guard() -> SocketGuard:
    """Return the guard of the running event loop."""
    return _guards.setdefault(asyncio.get_running_loop(), SocketGuard())
