"""The listener of the filter that a container's agent has added, fetched out of the agent's descriptors.

Docker passes no descriptor out of a container.  Whoever may look into its first process may take one
(``pidfd_getfd``, Linux 5.6), and a watched container needs root anyway.
"""

import asyncio
import ctypes
import os

from sandboxes.backends.docker.container import alive
from sandboxes.backends.namespaces.inside.observed import KEPT_AT
from sandboxes.interface import SandboxUnavailable

PIDFD_GETFD = 438
"""The same on every architecture."""
LISTENER = "anon_inode:seccomp notify"
LOOK_S = 0.002


async def agents_listener(pid: int, pidfd: int) -> int:
    """The caller's to close; ``pidfd`` is process ``pid``.  Waits until it is there.

    Raises ``SandboxUnavailable`` if the agent ends before, or if the descriptor may not be taken.
    """
    while not _is_listener(f"/proc/{pid}/fd/{KEPT_AT}"):
        if not alive(pidfd):
            raise SandboxUnavailable(
                "the processes of its container cannot be observed: its agent ended when it added a filter. Its image"
                " needs a CPython with _ctypes, and the kernel seccomp listeners (Linux 5.0)"
            )
        await asyncio.sleep(LOOK_S)
    taken = _taken(pidfd, KEPT_AT)
    if not _is_listener(f"/proc/self/fd/{taken}"):  # the number was another process's meanwhile
        os.close(taken)
        raise SandboxUnavailable("its container ended before it was observed")
    return taken


def _is_listener(path: str) -> bool:
    try:
        return os.readlink(path) == LISTENER
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        raise SandboxUnavailable("only root may observe the processes of a container: run as root") from None


def _taken(pidfd: int, number: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    taken = int(libc.syscall(PIDFD_GETFD, pidfd, number, 0))
    if taken < 0:
        error = os.strerror(ctypes.get_errno())
        raise SandboxUnavailable(f"the processes of its container cannot be observed: pidfd_getfd: {error}")
    return taken
