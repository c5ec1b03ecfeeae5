"""The processes of one box as the host sees them: bubblewrap, and the box's process 1."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from sandboxes.backends.namespaces.arguments import GROUP, NAME_FILES, PASSWD, Descriptors, bwrap_arguments
from sandboxes.backends.namespaces.probe import as_nobody_in_particular, bwrap_path
from sandboxes.backends.namespaces.seccomp import deny_filter
from sandboxes.backends.namespaces.spawn import spawner
from sandboxes.egress.interception.watched import Doorway
from sandboxes.spec import SandboxSpec

DEATH_S = 10.0
COMPLAINT_BYTES = 2000


@dataclass
class BoxProcess:
    """bubblewrap's monitor outside, and a pidfd of process 1 inside, whose end is the end of the whole box."""

    monitor: subprocess.Popen[bytes]
    complaints: int
    """What bubblewrap says on stderr (a memory file)."""
    info: int
    init: int = -1

    @classmethod
    async def start(
        cls, spec: SandboxSpec, agent_socket: socket.socket, doorway: Doorway | None = None
    ) -> "BoxProcess":
        """Start bubblewrap, through a doorway that makes the network; the sockets stay ours to close."""
        inherited: list[int] = []
        complaints = os.memfd_create("complaints")
        info_read, info_write = os.pipe2(os.O_CLOEXEC)
        try:
            names = NAME_FILES.values() if doorway else ()
            inherited += (
                _memory_file(content) for content in (deny_filter(watched=doorway is not None), PASSWD, GROUP, *names)
            )
            seccomp, passwd, group, *named = inherited
            fds = Descriptors(agent_socket.fileno(), seccomp, info_write, passwd, group, tuple(named))
            through = doorway.arguments() if doorway else []
            passed = [doorway.theirs.fileno()] if doorway else []
            monitor = await spawner().spawn(
                [*as_nobody_in_particular(), *through, *bwrap_arguments(bwrap_path(), spec, fds)],
                inherited=(*inherited, info_write, fds.agent, *passed),
                stderr=complaints,
            )
        except BaseException:
            os.close(complaints)
            os.close(info_read)
            raise
        finally:
            for fd in (*inherited, info_write):
                os.close(fd)
        return cls(monitor, complaints, info_read)

    def identify(self) -> None:
        """Take hold of process 1.  To be called once the agent has spoken: bubblewrap has told its pid by then."""
        self.init = os.pidfd_open(json.loads(os.read(self.info, 4096))["child-pid"])

    def complaint(self) -> str:
        return os.pread(self.complaints, COMPLAINT_BYTES, 0).decode(errors="replace")

    def kill(self) -> None:
        """Begin the end: at once, without waiting."""
        if self.init >= 0:
            with suppress(ProcessLookupError):  # already gone, which is all we want
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
        else:
            self.monitor.kill()  # process 1 follows, by --die-with-parent

    async def gone(self) -> None:
        """Wait until no process of the box is left, and forget it.  Call once, after ``kill``."""
        try:
            if self.init >= 0:
                await _readable(self.init, DEATH_S)
            self.monitor.kill()
            # It has been killed, and nobody tells us of its end.
            while self.monitor.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.0005)
        finally:
            for fd in (self.complaints, self.info, *([self.init] if self.init >= 0 else [])):
                os.close(fd)


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("sandbox")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def _readable(pidfd: int, timeout_s: float) -> None:
    """Wait for the end of a process.  ``TimeoutError`` if the kernel cannot end it (stuck in a device)."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(pidfd, lambda: None if ended.done() else ended.set_result(None))
    try:
        async with asyncio.timeout(timeout_s):
            await ended
    finally:
        loop.remove_reader(pidfd)
