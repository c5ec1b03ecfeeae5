"""Hosts and admins that are killed: processes of their own, behind the client that every sandbox of a service has."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from sandboxes.admin.hosts_file import HostEntry, HostsFile
from sandboxes.interface import SandboxLost
from sandboxes.opened import opened
from sandboxes.service.tokens import Quota, Tokens
from sandboxes.spec import SandboxSpec
from tests.sandboxes.processes import Started, started
from tests.sandboxes.service.cast import until

AWAY = SandboxSpec(place="service", timeout_s=10)


@dataclass
class Scene:
    folder: Path
    processes: ExitStack
    hosts: dict[str, Started] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    admin: Started | None = None

    def host(self, name: str, port: int = 0) -> Started:
        own = ("--tokens", str(self.folder / f"{name}.json"), "--memory-mib", "4000")
        log = self.folder / f"{name}.log"
        self.hosts[name] = self.processes.enter_context(started(log, "serve", *own, port=port))
        return self.hosts[name]

    def start_admin(self, port: int = 0) -> Started:
        files = ("--tokens", str(self.folder / "admin.json"), "--hosts-file", str(self.folder / "hosts.json"))
        self.admin = self.processes.enter_context(started(self.folder / "admin.log", "admin", *files, port=port))
        return self.admin

    async def stats(self) -> dict[str, dict[str, object]]:
        """The numbers of the hosts, by name."""
        assert self.admin is not None
        async with httpx.AsyncClient(base_url=self.admin.url, headers=self.headers, trust_env=False) as client:
            return {host["name"]: host for host in (await client.get("/v1/stats")).json()["hosts"]}

    async def until_host(self, name: str, **wanted: object) -> None:
        async def is_so() -> bool:
            host = (await self.stats())[name]
            return all(host[key] == value for key, value in wanted.items())

        await until(is_so)


@pytest.fixture
def scene(tmp_path, monkeypatch) -> Iterator[Scene]:
    """Hosts ``a`` and ``b``, and an admin to which ``place = "service"`` leads."""
    with ExitStack() as processes:
        scene, hosts = Scene(tmp_path, processes), HostsFile(tmp_path / "hosts.json")
        for name in ("a", "b"):
            token = Tokens(tmp_path / f"{name}.json").create("admin", "admin", Quota(), "admin")[1]
            hosts.add(HostEntry(name=name, url=scene.host(name).url, token=token))
        token = Tokens(tmp_path / "admin.json").create("engine", "engine", Quota())[1]
        scene.headers = {"Authorization": f"Bearer {token}"}
        monkeypatch.setenv("PALESTRA_SANDBOX_URL", scene.start_admin().url)
        monkeypatch.setenv("PALESTRA_SANDBOX_TOKEN", token)
        yield scene


async def test_a_host_that_is_killed_loses_its_sandboxes_alone_and_may_come_back(scene):
    async with AsyncExitStack() as sandboxes:
        there, other = [await sandboxes.enter_async_context(opened(AWAY)) for _ in range(2)]
        await other.run_python("x = 42")
        running = asyncio.create_task(there.exec(["sleep", "60"], timeout_s=60))
        await until(lambda: _has_sleep(there))
        scene.hosts["a"].kill()
        with pytest.raises(SandboxLost, match="host 'a'"):
            await running
        assert not there.alive
        assert (await other.run_python("x")).stdout == "42\n"
        await scene.until_host("a", state="down", sandboxes=0)
        async with opened(AWAY) as third:
            assert (await third.run_python("1")).stdout == "1\n"
            assert (await scene.stats())["b"]["sandboxes"] == 2
        scene.host("a", scene.hosts["a"].port)
        await scene.until_host("a", state="up")
        async with opened(AWAY) as fourth:
            assert (await fourth.run_python("1")).stdout == "1\n"
            assert (await scene.stats())["a"]["sandboxes"] == 1


async def test_an_admin_that_is_killed_loses_no_sandbox(scene):
    async with opened(AWAY) as first, opened(AWAY) as second:
        for sandbox in (first, second):
            await sandbox.run_python("x = 42")
        scene.admin.kill()
        scene.start_admin(scene.admin.port)
        for sandbox in (first, second):
            assert (await sandbox.run_python("x")).stdout == "42\n"
        assert [host["sandboxes"] for host in (await scene.stats()).values()] == [1, 1]
    assert [host["sandboxes"] for host in (await scene.stats()).values()] == [0, 0]


async def test_what_a_silent_host_had_is_lost_for_good_and_closed_when_it_is_heard_of_again(scene):
    async with opened(AWAY) as sandbox:
        running = asyncio.create_task(sandbox.exec(["sleep", "60"], timeout_s=60))
        await until(lambda: _has_sleep(sandbox))
        scene.hosts["a"].process.send_signal(signal.SIGSTOP)
        with pytest.raises(SandboxLost, match="host 'a' is down"):
            await running
        scene.hosts["a"].process.send_signal(signal.SIGCONT)
        await scene.until_host("a", state="up", sandboxes=0)
        token = HostsFile(scene.folder / "hosts.json").entries()["a"].token
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=scene.hosts["a"].url, headers=headers, trust_env=False) as client:

            async def closed() -> bool:
                states = (await client.get("/v1/host")).json()["states"]
                return set(states.values()) == {"closed"}

            await until(closed)


async def _has_sleep(sandbox) -> bool:
    return any("sleep" in process.command for process in (await sandbox.inspect()).processes)
