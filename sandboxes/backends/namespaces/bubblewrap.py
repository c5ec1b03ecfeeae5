"""A bubblewrap that runs: its monitor outside, what it says, and the cgroup of everything in it."""

import asyncio
import json
import os
import socket
import subprocess
from dataclasses import dataclass

from sandboxes.backends.namespaces import limits
from sandboxes.backends.namespaces.arguments import GROUP, NAME_FILES, PASSWD, Descriptors, Program, bwrap_arguments
from sandboxes.backends.namespaces.exposure import exposed
from sandboxes.backends.namespaces.inside import pauses
from sandboxes.backends.namespaces.probe import as_nobody_in_particular, bwrap_path
from sandboxes.backends.namespaces.seccomp import deny_filter
from sandboxes.backends.namespaces.spawn import spawner
from sandboxes.cgroups.group import Group
from sandboxes.descriptors import REMEDIES
from sandboxes.egress.interception.watched import NetnsEntry
from sandboxes.interface import SandboxUnavailable
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed

DEATH_S = 10.0
FIRST_PAUSE_S = 0.0005
COMPLAINT_BYTES = 2000


@dataclass
class Bubblewrap:
    """Its monitor ends with process 1 inside, and process 1 with its monitor."""

    monitor: subprocess.Popen[bytes]
    complaints: int
    """What it says on stderr (a memory file)."""
    info: int
    group: Group | None = None
    """Its cgroup, where one can be made."""

    @classmethod
    async def start(
        cls,
        name: str,
        spec: SandboxSpec,
        agent_socket: socket.socket,
        netns_entry: NetnsEntry | None = None,
        *,
        zygote: bool = False,
        program: Program | None = None,
        passing: tuple[int, ...] = (),
    ) -> "Bubblewrap":
        """Start bubblewrap, through a namespace entry that makes the network; the sockets stay ours to close.

        ``program`` runs in place of the agent; it inherits the agent's socket and the descriptors ``passing``.
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
            for content in (PASSWD, GROUP, *names, *(() if zygote else (denied,))):
                inherited.append(_memory_file(content))
            _, accounts, groups, *named = inherited
            seccomp = None if zygote else named.pop()  # of which bubblewrap would not know, and leave it open
            fds = Descriptors(agent_socket.fileno(), seccomp, info_write, accounts, groups, tuple(named))
            through = netns_entry.arguments() if netns_entry else []
            passed = [netns_entry.theirs.fileno()] if netns_entry else []
            joining = group.joining() if group else []
            exposing, shown = ([], None) if program is None else exposed(program)
            arguments = bwrap_arguments(bwrap_path(), spec, fds, zygote=zygote, program=shown)
            monitor = await spawner().spawn(
                [*joining, *exposing, *as_nobody_in_particular(), *through, *arguments],
                inherited=(*inherited, fds.agent, *passed, *passing),
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
        return cls(monitor, complaints, info_read, group)

    def first_process(self) -> int:
        """The process id of process 1 on this machine.  Once that has spoken, and only once."""
        return int(json.loads(os.read(self.info, 4096))["child-pid"])

    def complaint(self) -> str:
        return os.pread(self.complaints, COMPLAINT_BYTES, 0).decode(errors="replace")

    @property
    def alive(self) -> bool:
        return self.monitor.poll() is None

    def kill(self) -> None:
        """Process 1 follows, by --die-with-parent."""
        self.monitor.kill()

    async def ended(self) -> None:
        """Return when the monitor has ended by itself, and has said why.  May raise ``TimeoutError``."""
        async with asyncio.timeout(DEATH_S):
            await self._monitor_ended()

    async def gone(self) -> None:
        """Wait until no process of it is left, and forget it.  Call once, after ``kill``."""
        try:
            self.monitor.kill()
            await self._monitor_ended()
        finally:
            os.close(self.complaints)
            os.close(self.info)
            if self.group is not None:
                await _removed(self.group)

    async def _monitor_ended(self) -> None:
        # Nobody tells us of its end.
        pauses_s = pauses.ever_longer_s(FIRST_PAUSE_S)
        while self.monitor.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(next(pauses_s))


async def _removed(group: Group) -> None:
    """Raises ``TimeoutError`` if the kernel cannot end a process of it."""
    pauses_s = pauses.ever_longer_s(FIRST_PAUSE_S)
    async with asyncio.timeout(DEATH_S):
        while not group.try_to_remove():
            try:
                group.kill()  # who was being made when the others were killed
            except OSError as error:
                if error.errno not in REMEDIES:
                    raise  # else: no descriptor to read who is left; again, until the time is over
            await asyncio.sleep(next(pauses_s))


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("sandbox")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


async def readable(descriptor: int, timeout_s: float) -> None:
    """Wait until there is something to read; of a pidfd: until its process has ended.

    ``TimeoutError`` if that does not come, as when the kernel cannot end a process (stuck in a device).
    """
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    finally:
        loop.remove_reader(descriptor)
