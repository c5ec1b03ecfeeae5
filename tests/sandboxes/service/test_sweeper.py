"""What a service that was killed leaves, and what the next one makes of it.  Real processes, real SIGKILL."""

# ruff: noqa: ASYNC110, ASYNC220, ASYNC221, ASYNC251  processes of the host set no event: one has to look again

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from sandboxes import owner
from sandboxes.cgroups.group import left_behind
from sandboxes.opened import opened
from sandboxes.service.tokens import Quota, Tokens
from sandboxes.spec import SandboxSpec
from sandboxes.sweeper import sweep
from tests.sandboxes.service.cast import create, until

SLEEP = 20_000_000 + os.getpid()
"""A number that is in the command lines of our guests only."""
WATCHED = {"timeout_s": 10, "network": "watched"}


@dataclass
class Apart:
    """A service in a process of its own."""

    process: subprocess.Popen[str]
    url: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator:
    started: list[Apart] = []

    def start() -> Apart:
        command = [sys.executable, "-m", "sandboxes", "serve", "--port", "0", "--tokens", str(tmp_path / "tokens.json")]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        phrase = []
        for line in process.stderr:
            phrase.append(line)
            if (reported := json.loads(line))["event"] == "serving":
                started.append(Apart(process, f"http://127.0.0.1:{reported['port']}"))
                started[-1].phrase = phrase
                return started[-1]
        raise AssertionError(f"the service did not start: {phrase}")

    yield start
    for item in started:
        item.process.terminate()
        item.process.wait()
        item.process.stderr.close()


@contextlib.asynccontextmanager
async def client(service: Apart, tmp_path: Path):
    tokens = Tokens(tmp_path / "tokens.json")
    text = tokens.create(f"alice-{len(tokens.listed())}", "alice", Quota())[1]
    headers = {"Authorization": f"Bearer {text}"}
    async with httpx.AsyncClient(base_url=service.url, headers=headers, timeout=60, trust_env=False) as made:
        yield made


def guests() -> list[int]:
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if str(SLEEP).encode() in file.read():
                found.append(pid)
    return found


def inhabitants(networks: set[int]) -> set[tuple[int, int | None]]:
    """Processes in these network namespaces, each with its start: the kernel gives a freed number to somebody else."""
    found = set()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/net").st_ino in networks:
                found.add((pid, owner.started_ticks(pid)))
    return found


def mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def groups_of(pid: int) -> dict[str, list]:
    return {mark: sandboxes for mark, sandboxes in left_behind().items() if mark.startswith(f"{pid}:")}


async def with_sandboxes(service: Apart, tmp_path: Path) -> set[tuple[int, int | None]]:
    """Three sandboxes with grandchildren that sleep: plain, watched, frozen.  Returns all processes of their
    networks."""
    async with client(service, tmp_path) as alice:
        for spec in (WATCHED, WATCHED, {"timeout_s": 10}):
            path = await create(alice, spec=spec)
            program = f"(setsid sh -c 'sleep {SLEEP}; true' &) ; sleep {SLEEP} & echo begun"
            begun = await alice.post(f"{path}/exec", json={"argv": ["/bin/sh", "-c", program]})
            assert begun.json()["stdout"] == "begun\n", begun.text
        await alice.post(f"{path}/freeze", json={"reason": "for the test"})
    sleeping = guests()
    assert len(sleeping) >= 6
    return inhabitants({os.stat(f"/proc/{pid}/ns/net").st_ino for pid in sleeping})


async def test_after_a_kill_the_next_service_leaves_nothing(apart, tmp_path):
    mounts_before = mounts()
    service = apart()
    inside = await with_sandboxes(service, tmp_path)
    assert groups_of(service.process.pid)
    service.kill()
    again = apart()
    assert guests() == []
    assert [pid for pid, started in inside if owner.started_ticks(pid) == started] == []
    assert groups_of(service.process.pid) == {}
    assert mounts() == mounts_before
    async with client(again, tmp_path) as alice:
        await create(alice)


async def test_a_sweep_says_what_it_removes_and_touches_nothing_of_the_living(apart, tmp_path):
    service, other = apart(), apart()
    await with_sandboxes(service, tmp_path)
    async with client(other, tmp_path) as bob, opened(SandboxSpec(timeout_s=10)) as ours:
        path = await create(bob)
        stranger = subprocess.Popen(["sleep", "60"], env={"PALESTRA": "1"})
        service.kill()
        groups = {
            str(folder)
            for sandboxes in groups_of(service.process.pid).values()
            for g in sandboxes
            for _, folder in g.folders
        }
        command = [sys.executable, "-m", "sandboxes", "sweep", "--json"]
        seen = json.loads(subprocess.run([*command, "--dry-run"], capture_output=True, check=True).stdout)
        # Whoever makes its first sandbox on this machine removes empty groups of the dead, and may have been quicker.
        assert {group for group in groups if Path(group).exists()} <= set(seen["cgroups"])
        swept = subprocess.run(command, capture_output=True, check=True)
        reported = json.loads(swept.stdout)
        assert not any(Path(group).exists() for group in groups)
        assert reported["failed"] == []
        assert stranger.pid not in reported["processes"]
        assert guests() == []
        assert (await ours.run_python("1 + 1")).stdout == "2\n"
        assert (await bob.post(f"{path}/python", json={"code": "1 + 1"})).json()["stdout"] == "2\n"
        assert stranger.poll() is None
        stranger.kill()
        stranger.wait()
    assert groups_of(service.process.pid) == {}


def test_where_no_docker_listens_its_sdk_is_not_even_imported(tmp_path):
    program = "import sys; from sandboxes.sweeper import sweep; sweep(remove=False); print('docker' in sys.modules)"
    nowhere = os.environ | {"DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    reported = subprocess.run([sys.executable, "-c", program], env=nowhere, capture_output=True, check=True)
    assert reported.stdout == b"False\n"


async def test_processes_without_a_cgroup_are_found_by_their_mark(tmp_path):
    sleeping = ["sleep", str(SLEEP)]
    dead = subprocess.Popen(["true"])
    started = None
    while started is None:
        started = owner.started_ticks(dead.pid) or 1
    dead.wait()
    mark = f"{dead.pid}:{started}:" + owner.mark().split(":", 2)[2]
    marks = {
        "dead": mark,
        "alive": owner.mark(),
        "of another boot": re.sub(r":[0-9a-f-]{36}:", ":00000000-0000-0000-0000-000000000000:", mark),
        "of another machine": f"{mark}1",
        "nonsense": "x",
    }
    running = {about: subprocess.Popen(sleeping, env={owner.VARIABLE: mark}) for about, mark in marks.items()}
    try:
        assert running["dead"].pid in sweep(remove=False).processes
        assert running["dead"].poll() is None, "a dry run removes nothing"
        assert running["dead"].pid in sweep().processes
        assert running["dead"].wait(10) == -signal.SIGKILL
        assert [about for about, process in running.items() if process.poll() is not None] == ["dead"]
    finally:
        for process in running.values():
            process.kill()
            process.wait()


async def test_sandboxes_carry_the_mark_of_their_owner_and_guests_do_not_see_it():
    async with opened(SandboxSpec(timeout_s=10)) as sandbox:
        seen = await sandbox.exec(["/bin/sh", "-c", "env; cat /proc/*/environ; cat /proc/*/cmdline"])
        assert owner.VARIABLE not in seen.stdout
        monitors = [pid for pid in os.listdir("/proc") if pid.isdigit() and marked(pid)]
        assert monitors


def marked(pid: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return f"{owner.VARIABLE}={owner.mark()}".encode() in file.read().split(b"\0")
    return False


async def test_sigterm_closes_every_sandbox_and_exits_0(apart, tmp_path):
    service = apart()
    async with client(service, tmp_path) as alice:
        path = await create(alice)
        running = asyncio.create_task(
            alice.post(f"{path}/exec", json={"argv": ["/bin/sh", "-c", f"sleep 1; echo done; sleep {SLEEP} &"]})
        )
        await until(lambda: asyncio.to_thread(lambda: "sleep" in processes_of(service.process.pid)))
        service.process.terminate()
        assert (await running).json()["stdout"] == "done\n", "requests under way are answered"
        assert await asyncio.to_thread(service.process.wait, 30) == 0
    assert guests() == []
    assert groups_of(service.process.pid) == {}


def processes_of(pid: int) -> str:
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
