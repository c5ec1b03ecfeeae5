"""The processes of one sandbox as the host sees them: bubblewrap, and the sandbox's process 1."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from sandboxes.backends.namespaces import inspection, limits
from sandboxes.backends.namespaces.arguments import GROUP, NAME_FILES, PASSWD, Descriptors, bwrap_arguments
from sandboxes.backends.namespaces.probe import as_nobody_in_particular, bwrap_path
from sandboxes.backends.namespaces.seccomp import deny_filter
from sandboxes.backends.namespaces.spawn import spawner
from sandboxes.backends.namespaces.stopping import stop_all
from sandboxes.cgroups.group import Group
from sandboxes.descriptors import REMEDIES
from sandboxes.egress.interception.watched import NetnsEntry
from sandboxes.interface import InspectedFile, InspectedProcess, SandboxUnavailable
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed

T = TypeVar("T")
DEATH_S = 10.0
COMPLAINT_BYTES = 2000


@dataclass
class SandboxProcess:
    """bubblewrap's monitor outside, and a pidfd of process 1 inside, whose end is the end of the whole sandbox."""

    monitor: subprocess.Popen[bytes]
    complaints: int
    """What bubblewrap says on stderr (a memory file)."""
    info: int
    init: int = -1
    init_pid: int = 0
    group: Group | None = None
    """Its cgroup, where one can be made."""
    stopped: bool = False

    @classmethod
    async def start(
        cls, name: str, spec: SandboxSpec, agent_socket: socket.socket, netns_entry: NetnsEntry | None = None
    ) -> "SandboxProcess":
        """Start bubblewrap, through a namespace entry that makes the network; the sockets stay ours to close.

        Raises ``SandboxUnavailable``; ``OSError`` if no more files can be opened.
        """
        try:
            group = Group.make(name, limits.bounds(spec))
        except OSError as error:
            if error.errno in REMEDIES:
                raise
            raise SandboxUnavailable(f"no cgroup can be made for a sandbox: {error}") from None
        inherited: list[int] = []
        ours: list[int] = []
        try:
            ours.append(complaints := os.memfd_create("complaints"))
            info_read, info_write = os.pipe2(os.O_CLOEXEC)
            ours.append(info_read)
            inherited.append(info_write)
            names = NAME_FILES.values() if netns_entry else ()
            observed = netns_entry is not None and netns_entry.observed
            denied = deny_filter(watched=netns_entry is not None, observed=observed)
            for content in (denied, PASSWD, GROUP, *names):
                inherited.append(_memory_file(content))
            _, seccomp, accounts, groups, *named = inherited
            fds = Descriptors(agent_socket.fileno(), seccomp, info_write, accounts, groups, tuple(named))
            through = netns_entry.arguments() if netns_entry else []
            passed = [netns_entry.theirs.fileno()] if netns_entry else []
            joining = group.joining() if group else []
            monitor = await spawner().spawn(
                [*joining, *as_nobody_in_particular(), *through, *bwrap_arguments(bwrap_path(), spec, fds)],
                inherited=(*inherited, fds.agent, *passed),
                stderr=complaints,
            )
        except BaseException:
            for fd in ours:
                os.close(fd)
            if group is not None:
                await completed(_removed(group))
            raise
        finally:
            for fd in inherited:
                os.close(fd)
        return cls(monitor, complaints, info_read, group=group)

    def identify(self) -> None:
        """Take hold of process 1.  To be called once the agent has spoken: bubblewrap has told its pid by then.

        Twice is fine.
        """
        if self.init >= 0:
            return
        self.init_pid = json.loads(os.read(self.info, 4096))["child-pid"]
        self.init = os.pidfd_open(self.init_pid)

    def complaint(self) -> str:
        return os.pread(self.complaints, COMPLAINT_BYTES, 0).decode(errors="replace")

    @property
    def limits(self) -> Literal["cgroup", "prlimit"]:
        return "cgroup" if self.group is not None and self.group.limits else "prlimit"

    async def stop(self) -> None:
        """No process of the sandbox runs any more when this returns.  Raises ``OSError``, ``TimeoutError``."""
        self.stopped = True
        if self.group is not None and self.group.freezes:
            await asyncio.to_thread(self.group.freeze)
        else:
            await self._outside(stop_all)

    async def inspected(self) -> tuple[list[InspectedProcess], list[InspectedFile], bool]:
        """Processes, files, and whether those are all.  Raises ``OSError`` once the sandbox is gone."""
        processes, all_processes = await self._outside(lambda init, _: inspection.processes(init))
        files, all_files = await self._outside(inspection.files)
        return processes, files, all_processes and all_files

    async def _outside(self, look: Callable[[int, int], T]) -> T:
        """In a thread, which outlives a caller who is cancelled: it has a pidfd of its own."""
        pidfd = os.dup(self.init)

        def looked() -> T:
            try:
                return look(self.init_pid, pidfd)
            finally:
                os.close(pidfd)

        return await asyncio.to_thread(looked)

    def kill(self) -> None:
        """Begin the end: at once, without waiting."""
        if self.stopped and self.group is not None and self.group.holds_the_dead:
            self.group.kill()
        elif self.init >= 0:
            with suppress(ProcessLookupError):  # already gone, which is all we want
                signal.pidfd_send_signal(self.init, signal.SIGKILL)
        else:
            self.monitor.kill()  # process 1 follows, by --die-with-parent

    async def dead(self) -> None:
        """After ``kill``: return when process 1 has ended, which is the last one.  May raise ``TimeoutError``."""
        if self.init >= 0:
            await _readable(self.init, DEATH_S)

    async def gone(self) -> None:
        """Wait until no process of the sandbox is left, and forget it.  Call once, after ``kill``."""
        try:
            await self.dead()
            self.monitor.kill()
            # It has been killed, and nobody tells us of its end.
            while self.monitor.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.0005)
        finally:
            for fd in (self.complaints, self.info, *([self.init] if self.init >= 0 else [])):
                os.close(fd)
            if self.group is not None:
                await _removed(self.group)


async def _removed(group: Group) -> None:
    """Raises ``TimeoutError`` if the kernel cannot end a process of it."""
    async with asyncio.timeout(DEATH_S):
        while not group.try_to_remove():
            try:
                group.kill()  # who was being made when the others were killed
            except OSError as error:
                if error.errno not in REMEDIES:
                    raise  # else: no descriptor to read who is left; again, until the time is over
            await asyncio.sleep(0.0005)


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
