"""Limits of a sandbox as a whole: where cgroups can be made, what they hold, and what is left of them."""

# ruff: noqa: ASYNC110, ASYNC220  processes on the host set no event: one has to look again

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from sandboxes import owner
from sandboxes.backends.namespaces import limits
from sandboxes.backends.namespaces.sandbox import NamespaceSandbox
from sandboxes.cgroups import group
from sandboxes.cgroups.group import Group, left_behind
from sandboxes.cgroups.hierarchies import Found, Hierarchy, found, look
from sandboxes.interface import SandboxUnavailable
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
from sandboxes.sweeper import sweep
from tests.sandboxes.asking import cell_output, python

ROOT = Path(__file__).parents[2]
SPEC = SandboxSpec(timeout_s=20)
needs_cgroups = pytest.mark.skipif(not found().limits, reason="this process may not make cgroups with limits")


def folder_of(sandbox: NamespaceSandbox, controller: str) -> Path:
    return next(folder for tree, folder in sandbox._process.group.folders if controller in tree.controllers)


def groups_of_this_process() -> set[Path]:
    """Processes of environments are kept as long as this one lives: what other tests have begun may stand in it."""
    return {folder for made in left_behind().get(owner.mark(), []) for _, folder in made.folders}


@needs_cgroups
@pytest.mark.parametrize("network", ["none", "watched"])
async def test_every_process_of_a_sandbox_is_in_its_groups_from_the_first_on(network):
    async with opened(SandboxSpec(network=network)) as sandbox:
        await sandbox.run_python("import os; os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '60')")
        folders = [folder for _, folder in sandbox._process.group.folders]
        for process in (await sandbox.inspect()).processes:
            groups = Path(f"/proc/{process.pid}/cgroup").read_text()
            assert groups.count(f"/palestra/{owner.mark()}/{folders[0].name}\n") == len(folders), groups
        assert (await sandbox.inspect()).limits == "cgroup"


@needs_cgroups
async def test_the_limits_are_those_of_the_spec():
    spec = SandboxSpec(memory_mib=64, disk_mib=8, processes=7)
    async with opened(spec) as sandbox:
        memory, pids, cpu = (folder_of(sandbox, name) for name in ("memory", "pids", "cpu"))
        limit = (
            memory / "memory.limit_in_bytes" if (memory / "memory.limit_in_bytes").exists() else memory / "memory.max"
        )
        assert int(limit.read_text()) == (64 + 4 * 8 + limits.OWN_MIB) * 2**20
        assert int((pids / "pids.max").read_text()) == 7 + limits.OWN_PROCESSES
        weights = [folder / name for folder in (cpu, cpu.parent) for name in ("cpu.shares", "cpu.weight")]
        sandbox_weight, all_weight = (int(weight.read_text()) for weight in weights if weight.exists())
        assert all_weight == sandbox_weight * os.cpu_count()


@needs_cgroups
async def test_memory_is_bounded_for_all_processes_together_and_the_sandbox_lives_on():
    """Each process keeps within its own limit; together they want ten times as much."""
    async with opened(SandboxSpec(memory_mib=128, disk_mib=4, timeout_s=20)) as sandbox:
        eaters = await asyncio.gather(
            *(
                sandbox.exec(["/usr/bin/python3", "-S", "-c", "x = b'x' * (90 * 2**20)\nimport time; time.sleep(3)"])
                for _ in range(12)
            )
        )
        outcomes = sorted(eater.outcome for eater in eaters)
        assert "killed" in outcomes, outcomes
        assert "ok" in outcomes, outcomes
        assert (await sandbox.run_python("'alive'")).stdout == "'alive'\n"


@needs_cgroups
async def test_empty_files_are_bounded_by_memory(monkeypatch):
    monkeypatch.setattr("sandboxes.backends.namespaces.sandbox.RESET_S", 60.0)  # it removes a hundred thousand files
    async with opened(SandboxSpec(memory_mib=32, disk_mib=1, snapshots=False, timeout_s=60)) as sandbox:
        code = "import os\nfor n in range(10**6): os.close(os.open(f'/tmp/{n}', os.O_CREAT))"
        assert (await sandbox.exec(["/usr/bin/python3", "-S", "-c", code])).outcome != "ok"
        await sandbox.reset()
        assert await cell_output(sandbox, "import os; os.listdir('/tmp')") == "[]"


async def test_close_leaves_no_group():
    before = groups_of_this_process()
    async with opened(SPEC) as sandbox:
        folders = [] if sandbox._process.group is None else [folder for _, folder in sandbox._process.group.folders]
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)
    assert groups_of_this_process() <= before


async def test_a_start_that_is_cancelled_anywhere_leaves_no_group():
    before = groups_of_this_process()
    for step in range(20):
        start = asyncio.create_task(NamespaceSandbox.start(SPEC))
        await asyncio.sleep(step * 0.002)
        start.cancel()
        result = (await asyncio.gather(start, return_exceptions=True))[0]
        if isinstance(result, NamespaceSandbox):
            await result.close()
    assert groups_of_this_process() <= before


async def test_without_cgroups_the_limits_are_those_of_each_process(monkeypatch):
    monkeypatch.setattr(group, "found", Found)
    async with opened(SPEC) as sandbox:
        assert (await sandbox.inspect()).limits == "prlimit"
        result = await python(sandbox, f"x = bytearray({SPEC.memory_mib} * 2**20)")
        assert result.outcome == "memory"


@pytest.mark.parametrize("tree", [Hierarchy(Path("/proc/nowhere/palestra"), 1, frozenset({"memory", "pids"}))])
async def test_a_group_that_cannot_be_made_means_no_sandbox(monkeypatch, tree):
    monkeypatch.setattr(group, "found", lambda: Found((tree,)))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxUnavailable, match="no cgroup can be made"):
        await NamespaceSandbox.start(SPEC)
    assert len(os.listdir("/proc/self/fd")) <= before


@needs_cgroups
async def test_a_sandbox_that_cannot_join_its_group_does_not_start(monkeypatch):
    before = groups_of_this_process()
    monkeypatch.setattr(Group, "joining", lambda made: ["/bin/sh", "-c", group.JOIN, "sh", "/proc/nowhere/tasks", "--"])
    with pytest.raises(SandboxUnavailable, match="nowhere"):
        await NamespaceSandbox.start(SPEC)
    assert groups_of_this_process() <= before


EMBEDDER = """
import asyncio
from sandboxes.opened import open_sandbox
from sandboxes.spec import SandboxSpec
async def main():
    sandbox = await open_sandbox(SandboxSpec())
    await sandbox.freeze("for ever")
    print([process.pid for process in (await sandbox.inspect()).processes], flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@needs_cgroups
async def test_what_a_killed_owner_left_is_found_by_its_mark_and_can_be_ended():
    embedder = subprocess.Popen([sys.executable, "-c", EMBEDDER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        pids = eval(await asyncio.to_thread(embedder.stdout.readline))
        (mark,) = (mark for mark in left_behind() if mark.startswith(f"{embedder.pid}:"))
        assert not owner.is_dead(mark)
    finally:
        embedder.send_signal(signal.SIGKILL)
        embedder.wait()
        embedder.stdout.close()
    assert owner.is_dead(mark)
    (left,) = left_behind()[mark]
    async with asyncio.timeout(60):
        while not left.try_to_remove():
            left.kill()
            await asyncio.sleep(0.01)
        while any(Path(f"/proc/{pid}/exe").exists() for pid in pids):
            await asyncio.sleep(0.01)
    assert mark not in left_behind()


@needs_cgroups
async def test_what_an_owner_in_another_group_left_is_swept():
    """As where a service manager or a container gives each process a group of its own."""
    tree = found().hierarchies[0]
    apart = tree.folder.parent / f"apart-{os.getpid()}"
    apart.mkdir()
    joining = ["/bin/sh", "-c", group.JOIN, "sh", str(apart / "cgroup.procs"), "--"]
    embedder = subprocess.Popen([*joining, sys.executable, "-c", EMBEDDER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        pids = eval(await asyncio.to_thread(embedder.stdout.readline))
        assert not set(pids) & set(sweep(remove=False).processes), "its owner lives"
    finally:
        embedder.kill()
        embedder.wait()
        embedder.stdout.close()
        swept = await asyncio.to_thread(sweep)
        apart.rmdir()
    assert swept.failed == []
    assert any(folder.startswith(f"{apart}/palestra/{embedder.pid}:") for folder in swept.cgroups)
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)


@needs_cgroups
def test_the_next_process_removes_what_a_killed_one_left():
    code = "import asyncio, os\nfrom sandboxes.opened import open_sandbox\nfrom sandboxes.spec import SandboxSpec\n"
    killed = code + "asyncio.run(open_sandbox(SandboxSpec()))\nos.kill(os.getpid(), 9)"
    first = subprocess.Popen([sys.executable, "-c", killed], cwd=ROOT)
    first.wait()
    (mark,) = (mark for mark in left_behind() if mark.startswith(f"{first.pid}:"))
    while any(
        (folder / "cgroup.procs").read_text() for sandbox in left_behind()[mark] for _, folder in sandbox.folders
    ):
        time.sleep(0.01)  # its processes follow it
    close = code + "async def main(): await (await open_sandbox(SandboxSpec())).close()\nasyncio.run(main())"
    subprocess.run([sys.executable, "-c", close], cwd=ROOT, check=True)
    assert mark not in left_behind()


# -- where groups can be made ----------------------------------------------------------------------


def mounts(*lines: str) -> str:
    return "\n".join(f"3{number} 31 0:3{number} {line}" for number, line in enumerate(lines))


def test_on_v1_groups_are_nested_in_our_own_one(tmp_path):
    (tmp_path / "memory/docker/abc/ours").mkdir(parents=True)
    (tmp_path / "pids/x").mkdir(parents=True)
    (tmp_path / "cpu,cpuacct").mkdir()
    seen = look(
        mounts(
            f"/ {tmp_path}/memory rw - cgroup cgroup rw,memory",
            f"/docker/abc {tmp_path}/pids rw - cgroup cgroup rw,pids",
            f"/ {tmp_path}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            f"/elsewhere {tmp_path}/freezer rw - cgroup cgroup rw,freezer",
        ),
        "9:name=systemd:/\n4:memory:/docker/abc/ours\n3:pids:/docker/abc/x\n2:cpu,cpuacct:/\n1:freezer:/docker\n",
    )
    assert {tuple(tree.controllers)[0]: tree.folder.relative_to(tmp_path) for tree in seen.hierarchies} == {
        "memory": Path("memory/docker/abc/ours/palestra"),
        "pids": Path("pids/x/palestra"),
        "cpu": Path("cpu,cpuacct/palestra"),
    }
    assert seen.limits


def v2(tmp_path: Path, *, parent: str, own: str) -> Found:
    """A stand-in for the files; a folder without ``cgroup.subtree_control`` has processes and may give nothing."""
    for folder, controllers in ((tmp_path / "slice", parent), (tmp_path / "slice/ours", own)):
        folder.mkdir()
        if controllers:
            (folder / "cgroup.controllers").write_text(controllers)
        else:
            (folder / "cgroup.controllers").mkdir()
    return look(mounts(f"/ {tmp_path} rw - cgroup2 cgroup2 rw"), "0::/slice/ours\n")


def test_on_v2_groups_are_made_beside_us_where_the_parent_was_given_to_us(tmp_path):
    seen = v2(tmp_path, parent="cpu io memory pids", own="")
    (tree,) = seen.hierarchies
    assert tree == Hierarchy(tmp_path / "slice/palestra", 2, frozenset({"cpu", "memory", "pids", "freezer"}))
    for folder in (tree.folder, tree.folder.parent):
        assert (folder / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_on_v2_without_controllers_and_without_a_freezer_there_is_nothing(tmp_path):
    seen = v2(tmp_path, parent="", own="")
    assert (seen.hierarchies, seen.limits) == ((), False)
    assert "freeze" in seen.obstacles[0]


ORDINARY = """
import os
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
print(found().limits, bool(found().obstacles))
"""


def test_an_ordinary_user_without_delegation_has_none_and_is_told_why():
    code = textwrap.dedent("from sandboxes.cgroups.hierarchies import found\n") + ORDINARY
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout == "False True\n", run.stderr
