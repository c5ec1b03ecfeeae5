"""An admin and two hosts in this event loop, on the loopback, and alice and bob with tokens of the admin's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandboxes.admin.app import make_app as make_admin
from sandboxes.admin.hosts_file import HostEntry, HostsFile
from sandboxes.admin.settings import AdminSettings
from sandboxes.service.app import make_app
from sandboxes.service.capacity import Capacity, demand_mib
from sandboxes.service.serving import Serving
from sandboxes.service.settings import Settings
from sandboxes.service.tokens import Quota, Role, Tokens
from sandboxes.spec import SandboxSpec
from tests.sandboxes.service.cast import until

ONE = SandboxSpec(timeout_s=10)
LOOK_S = 0.05


@dataclass
class Running:
    serving: Serving
    task: asyncio.Task[None]
    tokens: Tokens

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.serving.port}"

    @property
    def sandboxes(self) -> Any:
        return self.serving.app.state.sandboxes

    async def stop(self) -> None:
        if not self.task.done():
            self.serving.stop()
        await self.task

    def token(self, name: str, role: Role = "user", **quota: float) -> str:
        return self.tokens.create(name, name, Quota(**quota), role)[1]


@dataclass
class Fleet:
    """Everything listens on loopback; ``clients`` are closed with it."""

    folder: Path
    clients: AsyncExitStack
    hosts: dict[str, Running] = field(default_factory=dict)
    admin: Running | None = None

    @property
    def file(self) -> HostsFile:
        return HostsFile(self.folder / "hosts.json")

    async def add_host(self, name: str, capacity: Capacity | None = None, port: int = 0) -> Running:
        settings = Settings(self.folder / f"{name}.json", capacity or Capacity(4, 4 * demand_mib(ONE)), port=port)
        serving = Serving(settings, make_app(settings))
        host = await _running(serving, Tokens(settings.tokens))
        self.hosts[name] = host
        if name not in self.file.entries():
            self.file.add(HostEntry(name=name, url=host.url, token=host.token("admin", "admin")))
        return host

    async def start_admin(self, port: int = 0) -> Running:
        settings = AdminSettings(
            self.folder / "admin.json", self.folder / "hosts.json", port=port, look_every_s=LOOK_S, drain_s=1
        )
        self.admin = await _running(Serving(settings, make_admin(settings)), Tokens(settings.tokens))
        return self.admin

    async def client(self, name: str, role: Role = "user", **quota: float) -> httpx.AsyncClient:
        assert self.admin is not None
        headers = {"Authorization": f"Bearer {self.admin.token(name, role, **quota)}"}
        made = httpx.AsyncClient(base_url=self.admin.url, headers=headers, timeout=60, trust_env=False)
        return await self.clients.enter_async_context(made)

    async def stats(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """Those of the admin, its hosts by name."""
        answer = (await client.get("/v1/stats")).json()
        return answer | {"hosts": {host["name"]: host for host in answer["hosts"]}}

    async def until_host(self, client: httpx.AsyncClient, name: str, **wanted: object) -> None:
        async def is_so() -> bool:
            host = (await self.stats(client))["hosts"].get(name, {})
            return all(host.get(key) == value for key, value in wanted.items())

        await until(is_so)


async def _running(serving: Serving, tokens: Tokens) -> Running:
    running = Running(serving, asyncio.create_task(serving.run()), tokens)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as probing:
        assert (await probing.get(f"{running.url}/healthz")).status_code == 200
    return running


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Hosts ``a`` and ``b`` with room for four sandboxes each, and an admin."""
    async with AsyncExitStack() as clients:
        fleet = Fleet(tmp_path, clients)
        for name in ("a", "b"):
            await fleet.add_host(name)
        await fleet.start_admin()
        yield fleet
    for running in (fleet.admin, *fleet.hosts.values()):
        assert running is not None
        await running.stop()


@pytest.fixture
async def alice(fleet: Fleet) -> httpx.AsyncClient:
    return await fleet.client("alice")


@pytest.fixture
async def bob(fleet: Fleet) -> httpx.AsyncClient:
    return await fleet.client("bob")
