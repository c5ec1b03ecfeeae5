"""The hosts of an admin: read from their file, looked at all the time, added and taken out while it runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sandboxes.admin.host import Host
from sandboxes.admin.hosts_file import HostsFile
from sandboxes.service.capacity import Gate
from sandboxes.service.host_routes import HostView

log = logging.getLogger(__name__)

OnLook = Callable[[Host, HostView, float], Awaitable[None]]
"""A host that has answered, what it said, and when it was asked (the loop's clock)."""
OnGone = Callable[[Host, str], None]
"""A host that is down or taken out, and why: what it had is lost."""


class Fleet:
    """Belongs to one event loop.  ``gate`` has a room for each host."""

    def __init__(self, file: HostsFile, gate: Gate, on_look: OnLook, on_gone: OnGone, every_s: float) -> None:
        self.hosts: dict[str, Host] = {}
        self._file = file
        self._gate = gate
        self._on_look, self._on_gone = on_look, on_gone
        self._every_s = every_s
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when every host of the file has said what it has, or is known to be down."""
        await self._read_file()
        self._reading = asyncio.ensure_future(self._keep_reading())
        for host in list(self.hosts.values()):
            await host.known.wait()

    async def close(self) -> None:
        tasks = [task for task in (self._reading, *self._watching.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for host in self.hosts.values():
            await host.close()

    async def _keep_reading(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._read_file()
            except Exception:
                log.exception("the file of hosts could not be read, and will be again; the hosts stay what they are")

    async def _read_file(self) -> None:
        entries = self._file.entries()
        for name in self.hosts.keys() - entries.keys():
            await self._take_out(name)
        for name, entry in entries.items():
            known = self.hosts.get(name)
            if known is None:
                self._add(Host(entry))
            elif known.entry != entry:
                await known.change(entry)
                log.info("host changed", extra={"host_name": name, "url": entry.url, "draining": entry.draining})
                self._gate.let_in()

    def _add(self, host: Host) -> None:
        self.hosts[host.name] = host
        self._gate.rooms.append(host.room)
        self._watching[host.name] = asyncio.ensure_future(self._watch(host))
        log.info("host added", extra={"host_name": host.name, "url": host.entry.url})

    async def _take_out(self, name: str) -> None:
        host = self.hosts.pop(name)
        self._gate.rooms.remove(host.room)
        watching = self._watching.pop(name)
        watching.cancel()
        await asyncio.wait([watching])
        self._on_gone(host, f"host '{name}' was taken out by its operator")
        await host.close()
        log.info("host removed", extra={"host_name": name})

    async def _watch(self, host: Host) -> None:
        while True:
            try:
                await self._look_at(host)
            except Exception:
                log.exception("a host could not be compared, and will be again", extra={"host_name": host.name})
            await asyncio.sleep(self._every_s)

    async def _look_at(self, host: Host) -> None:
        was_up, asked_at = host.is_up, asyncio.get_running_loop().time()
        view = await host.look()
        if view is not None:
            await self._on_look(host, view, asked_at)
            host.known.set()
            self._gate.let_in()
            if not was_up:
                log.info("host up", extra={"host_name": host.name, "instance": view.instance})
        elif host.is_down:
            host.known.set()
        if was_up and not host.is_up:
            reason = f"host '{host.name}' is down: {host.fault}"
            log.error("host down", extra={"host_name": host.name, "reason": host.fault})
            self._on_gone(host, reason)
            self._gate.let_in()
