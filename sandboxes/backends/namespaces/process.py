"""The processes of one sandbox as the host sees them: the sandbox's process 1, and what that was made in."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from sandboxes.backends.namespaces import inspection
from sandboxes.backends.namespaces.bubblewrap import DEATH_S, Bubblewrap, readable
from sandboxes.backends.namespaces.stopping import stop_all
from sandboxes.backends.namespaces.zygote import Zygote, Zygotes
from sandboxes.cgroups.group import Group
from sandboxes.egress.interception.watched import NetnsEntry
from sandboxes.interface import InspectedFile, InspectedProcess
from sandboxes.spec import SandboxSpec

T = TypeVar("T")


@dataclass
class SandboxProcess:
    """bubblewrap, and a pidfd of the agent, process 1 of the sandbox, whose end is the end of the whole sandbox."""

    bubblewrap: Bubblewrap
    zygote: Zygote | None = None
    """Who made the agent; without one, bubblewrap did."""
    zygotes: Zygotes | None = None
    init: int = -1
    init_pid: int = 0
    stopped: bool = False

    @classmethod
    async def start(
        cls, name: str, spec: SandboxSpec, agent_socket: socket.socket, netns_entry: NetnsEntry | None = None
    ) -> "SandboxProcess":
        """Raises like ``Bubblewrap.start``."""
        return cls(await Bubblewrap.start(name, spec, agent_socket, netns_entry))

    @classmethod
    async def made_by_zygote(cls, name: str, agent_socket: socket.socket, zygotes: Zygotes) -> "SandboxProcess":
        """Raises like ``Zygotes.make``."""
        zygote, pid = await zygotes.make(name, agent_socket)
        return cls(zygote.bubblewrap, zygote, zygotes, init_pid=pid)

    def identify(self) -> None:
        """Take hold of process 1.  To be called once the agent has spoken: its pid has been told by then.

        Twice is fine.
        """
        if self.init >= 0:
            return
        if self.zygote is None:
            self.init_pid = self.bubblewrap.first_process()
        self.init = os.pidfd_open(self.init_pid)
        if self.zygote is not None:
            self.zygote.tell_unbounded_sockets()

    def complaint(self) -> str:
        return self.bubblewrap.complaint()

    @property
    def group(self) -> Group | None:
        return self.bubblewrap.group

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
        elif self.zygote is not None:
            self.zygote.kill()
        else:
            self.bubblewrap.kill()

    async def dead(self) -> None:
        """After ``kill``: return when process 1 has ended, which is the last one.  May raise ``TimeoutError``."""
        if self.init >= 0:
            await readable(self.init, DEATH_S)

    async def gone(self) -> None:
        """Wait until no process of the sandbox is left, and forget it.  Call once, after ``kill``."""
        ended = False
        try:
            await self.dead()
            ended = self.init >= 0 and not self.stopped
        finally:
            if self.init >= 0:
                os.close(self.init)
            if self.zygote is None or self.zygotes is None:
                await self.bubblewrap.gone()
            elif ended:
                await self.zygotes.give_back(self.zygote)
            else:
                await self.zygote.close()
