"""Zygotes: bubblewrap's walls that stay, in which one sandbox after the other is made anew.

    NamespaceSandbox ── take ──► Zygotes ──idle one, or a new──► Zygote.make ──► its agent, process 1 of its own
                 ◄─ end ───         ◄─ give_back: nobody but the zygote is left in it, else it is closed

What a sandbox has of its own, and what it has of its zygote: docs/sandboxes.md, "Reuse".
"""

import asyncio
import logging
import os
import signal
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

from sandboxes.backends.namespaces import limits, probe
from sandboxes.backends.namespaces.bubblewrap import DEATH_S, Bubblewrap, readable
from sandboxes.backends.namespaces.inside import frames
from sandboxes.backends.namespaces.seccomp import deny_filter
from sandboxes.backends.namespaces.sockets import SYSCTLS
from sandboxes.cgroups.group import warn_of_unbounded_sockets
from sandboxes.interface import SandboxUnavailable
from sandboxes.observation.filter import seccomp_call
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed

log = logging.getLogger(__name__)
OWN_PROCESSES = 2
"""The processes of a zygote between two sandboxes: bubblewrap and itself."""
CREDENTIALS = struct.Struct("@iII")
MAKE_S = 30.0


class ZygoteLost(Exception):
    """It ended, or does not answer: it can make no sandbox."""


@dataclass(eq=False)
class Zygote:
    """One bubblewrap whose process 1 makes agents.  ``start`` makes it; belongs to one event loop."""

    bubblewrap: Bubblewrap
    orders: socket.socket
    process: int = -1
    """A pidfd of it, once it has spoken."""

    @classmethod
    async def start(cls, name: str, spec: SandboxSpec) -> "Zygote":
        """Raises ``SandboxUnavailable``; ``OSError`` if no more files can be opened."""
        code = await probe.zygote_code()
        ours, theirs = socket.socketpair()
        try:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with theirs:
                bubblewrap = await Bubblewrap.start(name, spec, theirs, zygote=True)
            walls = (spec.disk_mib * 2**20, SYSCTLS, deny_filter(), seccomp_call())
            arguments = (walls, limits.rlimits(spec, limits.WITH_ZYGOTE), spec.output_bytes)
            blob = frames.LENGTH.pack(len(code)) + code + frames.block(arguments)
            ours.setblocking(False)
        except BaseException:
            ours.close()
            raise
        started = cls(bubblewrap, ours)
        try:
            await asyncio.get_running_loop().sock_sendall(ours, blob)
        except OSError:
            raise await completed(started._failed()) from None
        except BaseException:
            await completed(started.close())
            raise
        return started

    async def make(self, agents: socket.socket) -> int:
        """Have an agent serve the other end of ``agents``; its process id on this machine.  Raises ``ZygoteLost``."""
        try:
            socket.send_fds(self.orders, [b"!"], [agents.fileno()])
            await readable(self.orders.fileno(), MAKE_S)
            word, ancillary, _, _ = self.orders.recvmsg(1, socket.CMSG_LEN(CREDENTIALS.size))
        except TimeoutError:
            raise ZygoteLost(f"it did not answer within {MAKE_S:g} s: {self.bubblewrap.complaint()}") from None
        except OSError as error:
            raise ZygoteLost(f"{error.strerror}: {self.bubblewrap.complaint()}") from None
        if word != b"!" or not ancillary:
            raise ZygoteLost(self.bubblewrap.complaint())
        if self.process < 0:
            self.process = os.pidfd_open(self.bubblewrap.first_process())
        return int(CREDENTIALS.unpack(ancillary[0][2])[0])

    def tell_unbounded_sockets(self) -> None:
        """Once there is an agent: what it said on its way is that sysctls cannot be set here."""
        if complaint := self.bubblewrap.complaint().strip():
            warn_of_unbounded_sockets(f"their size cannot be set ({complaint.splitlines()[0]})")

    @property
    def clear(self) -> bool:
        """Return whether it is alive, and nobody else is left in its cgroup, for all that we can see."""
        group = self.bubblewrap.group
        try:
            return self.bubblewrap.alive and (group is None or group.count() == OWN_PROCESSES)
        except OSError as error:
            log.warning("a zygote is not used again, because its cgroup cannot be read: %s", error)
            return False

    async def close(self) -> None:
        self.orders.close()
        self.kill()
        try:
            if self.process >= 0:
                await readable(self.process, DEATH_S)
        finally:
            if self.process >= 0:
                os.close(self.process)
            await self.bubblewrap.gone()

    def kill(self) -> None:
        """Begin the end of it and of its sandbox: at once, without waiting."""
        if self.process < 0:
            self.bubblewrap.kill()
            return
        with suppress(ProcessLookupError):  # already gone, which is all we want
            signal.pidfd_send_signal(self.process, signal.SIGKILL)

    async def _failed(self) -> SandboxUnavailable:
        """It is closed by then."""
        await self.bubblewrap.ended()
        complaint = self.bubblewrap.complaint()
        await self.close()
        return probe.unavailable(complaint)


class Zygotes:
    """Those of a pool that have no sandbox now.  All are of one spec."""

    def __init__(self, spec: SandboxSpec) -> None:
        self._spec = spec
        self._idle: list[Zygote] = []
        self._closed = False

    @staticmethod
    def serve(spec: SandboxSpec) -> bool:
        """Return whether sandboxes of this spec can be made so, and gain from it."""
        of_a_kind = (spec.backend, spec.place, spec.network, spec.reuse) == ("namespaces", "here", "none", "never")
        return of_a_kind and not spec.terminal

    async def make(self, name: str, agents: socket.socket) -> tuple[Zygote, int]:
        """A zygote that serves no one else, and the process id of the agent that it made.

        Raises like ``Zygote.start``, and ``SandboxUnavailable`` if a new one cannot make an agent either.
        """
        while self._idle:
            zygote = self._idle.pop()
            try:
                return zygote, await self._made(zygote, agents)
            except ZygoteLost as loss:
                log.warning("a zygote was lost and is replaced: %s", loss)
        zygote = await Zygote.start(name, self._spec)
        try:
            return zygote, await self._made(zygote, agents)
        except ZygoteLost as loss:
            raise probe.unavailable(str(loss)) from None

    async def _made(self, zygote: Zygote, agents: socket.socket) -> int:
        try:
            return await zygote.make(agents)
        except BaseException:
            await completed(zygote.close())
            raise

    async def give_back(self, zygote: Zygote) -> None:
        """Its sandbox has ended."""
        if self._closed or not zygote.clear:
            await zygote.close()
        else:
            self._idle.append(zygote)

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for end in await asyncio.gather(*(zygote.close() for zygote in idle), return_exceptions=True):
            if isinstance(end, BaseException):
                raise end
