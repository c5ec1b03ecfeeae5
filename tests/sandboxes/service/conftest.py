"""A service in this event loop, on the loopback, and the cast: alice, bob, and whoever has no token."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from sandboxes.service.app import make_app
from sandboxes.service.capacity import Capacity
from sandboxes.service.serving import Serving
from sandboxes.service.settings import Settings
from sandboxes.service.tokens import Quota, Tokens


@dataclass
class Running:
    url: str
    tokens: Tokens
    serving: Serving
    clients: AsyncExitStack

    def token(self, name: str, **quota: float) -> str:
        return self.tokens.create(name, name, Quota(**quota))[1]

    async def client(self, name: str, **quota: float) -> httpx.AsyncClient:
        """A client with a token of its own."""
        headers = {"Authorization": f"Bearer {self.token(name, **quota)}"}
        made = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60, trust_env=False)
        return await self.clients.enter_async_context(made)


Serve = Callable[..., Awaitable[Running]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """``await serve(capacity=..., ...)``: settings that are not the defaults."""
    running: list[tuple[Running, asyncio.Task[None]]] = []
    clients = AsyncExitStack()

    async def start(**options: object) -> Running:
        settings = Settings(tmp_path / "tokens.json", Capacity.detected(), port=0, drain_s=2)
        settings = replace(settings, **options)
        serving = Serving(settings, make_app(settings))
        task = asyncio.create_task(serving.run())
        made = Running(f"http://127.0.0.1:{serving.port}", Tokens(settings.tokens), serving, clients)
        async with httpx.AsyncClient(trust_env=False) as probing:
            assert (await probing.get(f"{made.url}/healthz")).status_code == 200
        running.append((made, task))
        return made

    yield start
    await clients.aclose()
    for made, task in running:
        if not task.done():
            made.serving.stop()
        await task


@pytest.fixture
async def service(serve: Serve) -> Running:
    return await serve()


@pytest.fixture
async def alice(service: Running) -> httpx.AsyncClient:
    return await service.client("alice")


@pytest.fixture
async def bob(service: Running) -> httpx.AsyncClient:
    return await service.client("bob")


@pytest.fixture
def at_service(service: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    """Specs with ``place = "service"`` lead to the service."""
    monkeypatch.setenv("PALESTRA_SANDBOX_URL", service.url)
    monkeypatch.setenv("PALESTRA_SANDBOX_TOKEN", service.token("engine"))
    return service
