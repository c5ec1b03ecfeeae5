"""Interception, entered into the network of a container that runs nothing untrusted yet."""

import asyncio
import os
import subprocess

from sandboxes.backends.docker.container import alive
from sandboxes.backends.namespaces import probe
from sandboxes.backends.namespaces.spawn import spawner
from sandboxes.egress.interception.watched import NetnsEntry, NoNetnsEntry
from sandboxes.interface import SandboxUnavailable
from sandboxes.teardown import completed

ENTER_S = 10.0
END_S = 2.0
COMPLAINT_BYTES = 2000


async def entered(pid: int, pidfd: int) -> list[int]:
    """The sockets of ``Watched``, opened in the network of process ``pid``, which ``pidfd`` is.

    Raises ``SandboxUnavailable``: a sandbox whose network cannot be watched is none.
    """
    if pidfd < 0:
        raise SandboxUnavailable(
            "a watched sandbox needs the Docker daemon's processes to be seen here: run on its host, not in a container"
            ', or set network = "none"'
        )
    namespace = _namespace(pid, pidfd)
    complaints = os.memfd_create("complaints")
    netns_entry = NetnsEntry(namespace)
    try:
        process = await spawner().spawn(
            netns_entry.arguments(), inherited=(netns_entry.theirs.fileno(), namespace), stderr=complaints
        )
        netns_entry.theirs.close()
        try:
            async with asyncio.timeout(ENTER_S):
                return await netns_entry.descriptors()
        except (NoNetnsEntry, TimeoutError):
            await completed(asyncio.to_thread(_ended, process))  # only then it has said why
            agent_complaint = os.pread(complaints, COMPLAINT_BYTES, 0).decode(errors="replace")
            raise probe.unavailable(agent_complaint or "netns entry: it ended without a word") from None
        finally:
            await completed(asyncio.to_thread(_ended, process))
    finally:
        netns_entry.close()
        os.close(complaints)
        os.close(namespace)


def _ended(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _namespace(pid: int, pidfd: int) -> int:
    """Open it, and only then make sure that the number was still the container's."""
    try:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        raise SandboxUnavailable(
            'only root may enter the network of a container: run as root, set network = "none", or set'
            ' backend = "namespaces"'
        ) from None
    except FileNotFoundError:
        raise SandboxUnavailable("its container ended before it was watched") from None
    if not alive(pidfd):
        os.close(namespace)
        raise SandboxUnavailable("its container ended before it was watched")
    return namespace
