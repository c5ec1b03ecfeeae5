"""Each way in which sandboxes of namespaces are stopped: the freezer of cgroup v1, that of v2, and signals.

A machine that lacks one of them skips its tests; signals are always there.
"""

# ruff: noqa: ASYNC110  what happens in a sandbox sets no event: one has to look again

import asyncio
import os
from pathlib import Path

import pytest

from sandboxes.backends.namespaces.sandbox import NamespaceSandbox
from sandboxes.cgroups import group, hierarchies
from sandboxes.cgroups.hierarchies import FREEZER, Found
from sandboxes.interface import SandboxFrozen
from sandboxes.spec import SandboxSpec
from tests.sandboxes.asking import host_processes, shell

SPEC = SandboxSpec(timeout_s=10)


def trees_of(version: int) -> Found:
    """As on a machine that has only this version mounted."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    kind = {1: " - cgroup2 ", 2: " - cgroup "}[version]
    seen = hierarchies.look(
        "\n".join(line for line in mounts if kind not in line), Path("/proc/self/cgroup").read_text()
    )
    if FREEZER not in seen.controllers:
        pytest.skip(f"no freezer of cgroup v{version} for this process: {seen.obstacles}")
    return seen


@pytest.fixture(params=["v1", "v2", "signals"])
def trees(request, monkeypatch) -> Found:
    trees = Found() if request.param == "signals" else trees_of(int(request.param[1]))
    monkeypatch.setattr(group, "found", lambda: trees)
    return trees


@pytest.fixture
async def sandbox(trees):
    sandbox = await NamespaceSandbox.start(SPEC)
    yield sandbox
    await sandbox.close()


def groups_of(sandbox: NamespaceSandbox) -> list[Path]:
    return [] if sandbox._process.group is None else [folder for _, folder in sandbox._process.group.folders]


async def stands_still(sandbox: NamespaceSandbox) -> bool:
    """Or comes to: a busy kernel takes its time with whom it was ending already, and that runs no code of a guest."""
    for _ in range(10):
        first = await sandbox.inspect()
        await asyncio.sleep(0.4)
        second = await sandbox.inspect()
        if first == second:
            return len(first.processes) > 2
    return False


async def begun(sandbox: NamespaceSandbox) -> None:
    while not any(file.path == "/work/begun" for file in (await sandbox.inspect()).files):
        await asyncio.sleep(0.01)


STORM = """
import os
open("/work/begun", "w").close()
while True:
    try:
        if os.fork(): os._exit(0)
    except OSError: pass
"""
SUBREAPERS = """
import ctypes, os
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans are buried here
open("/work/begun", "w").close()
while True:
    try:
        if not os.fork():
            if os.fork(): os._exit(0)
            continue
        os.wait()
    except OSError: pass
"""
VFORKS = """
import os, subprocess
open("/work/begun", "w").close()
while True:
    subprocess.run(["/bin/sh", "-c", "true & true"])
"""


@pytest.mark.parametrize("program", [STORM, SUBREAPERS, VFORKS])
async def test_no_fork_escapes(sandbox, program):
    running = [
        asyncio.create_task(sandbox.exec(["/usr/bin/python3", "-S", "-c", program], timeout_s=60)) for _ in range(2)
    ]
    await begun(sandbox)
    await asyncio.sleep(0.2)
    await sandbox.freeze("it forks")
    assert await stands_still(sandbox)
    await asyncio.gather(*running, return_exceptions=True)


HEADLESS = """
import ctypes, os, threading
def write():
    while True: os.pwrite(file, os.urandom(8), 0)
file = os.open("/work/begun", os.O_CREAT | os.O_WRONLY)
threading.Thread(target=write).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


async def test_a_process_whose_main_thread_has_ended_is_stopped(sandbox):
    """The kernel shows all of it as a zombie, and its other thread runs."""
    running = asyncio.create_task(sandbox.exec(["/usr/bin/python3", "-S", "-c", HEADLESS], timeout_s=60))
    await begun(sandbox)
    await asyncio.sleep(0.3)
    await sandbox.freeze("it writes")
    file = Path(f"/proc/{sandbox._process.init_pid}/root/work/begun")
    seen = {file.read_bytes() for _ in range(5) if await asyncio.sleep(0.05, True)}
    assert len(seen) == 1
    await asyncio.gather(running, return_exceptions=True)


TIMER_CREATE = {"x86_64": 222, "aarch64": 107}[os.uname().machine]
CONTINUED = f"""
import ctypes, fcntl, os, signal, struct
event = struct.pack("iiii48x", 0, signal.SIGCONT, 0, 0)
print(ctypes.CDLL(None).syscall({TIMER_CREATE}, 0, event, ctypes.byref(ctypes.c_int())))
try: print(fcntl.fcntl(os.pipe()[0], 10, int(signal.SIGCONT)))
except PermissionError as error: print(error.strerror)
"""


async def test_no_guest_can_have_the_kernel_continue_it_later(sandbox):
    """A timer or a ready descriptor would send a signal of the guest's choice."""
    result = await sandbox.exec(["/usr/bin/python3", "-S", "-c", CONTINUED])
    assert result.stdout == "-1\nOperation not permitted\n", result


async def test_a_stopped_sandbox_ends_whole_and_its_guests_do_not_run_once_more(sandbox):
    sign = f"{os.getpid()}543.21"
    # If it ran again, even for a moment, it would start another program.
    script = f"trap 'exec sleep {sign}' CONT TERM HUP; : > /work/begun; while true; do :; done"
    running = asyncio.create_task(shell(sandbox, script, timeout_s=60))
    await begun(sandbox)
    await sandbox.freeze("it loops")
    pids = [process.pid for process in (await sandbox.inspect()).processes]
    folders = groups_of(sandbox)
    async with asyncio.timeout(60):
        await sandbox.close()
    with pytest.raises(SandboxFrozen):
        await running
    assert host_processes(sign.encode()) == []
    assert [pid for pid in pids if running_still(pid)] == []
    assert [folder for folder in folders if folder.exists()] == []


def running_still(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


async def test_the_agents_deadline_does_not_lose_a_frozen_sandbox(sandbox, monkeypatch):
    monkeypatch.setattr("sandboxes.backends.namespaces.sandbox.GRACE_S", 0.1)
    running = asyncio.create_task(sandbox.run_python("while True: pass", timeout_s=4))
    await asyncio.sleep(0.1)
    await sandbox.freeze("it mines")  # on a busy machine that takes its time, and the deadline must not come first
    await asyncio.sleep(4.3)
    with pytest.raises(SandboxFrozen):
        await running
    assert sandbox.alive
    assert await stands_still(sandbox) or len((await sandbox.inspect()).processes) == 2


async def test_a_sandbox_that_does_not_stand_still_is_killed(sandbox, monkeypatch, caplog):
    async def never() -> None:
        raise TimeoutError("3 processes of a sandbox did not stop")

    monkeypatch.setattr(sandbox._process, "stop", never)
    await sandbox.freeze("it mines")
    assert "is killed" in caplog.text
    for call in (sandbox.run_python("1"), sandbox.inspect()):
        with pytest.raises(SandboxFrozen, match="it mines"):
            await call
