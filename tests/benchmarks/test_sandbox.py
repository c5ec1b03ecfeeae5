"""What the sandbox benchmark concludes, what it refuses to start, and that it leaves nothing behind."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import sandbox_alive, sandbox_docker, sandbox_room
from benchmarks.distribution import Distribution
from benchmarks.sandbox_docker import DockerMissing, docker
from benchmarks.sandbox_gateway import transfers
from benchmarks.sandbox_report import headlines, ratios
from benchmarks.sandbox_room import DESCRIPTORS, MEMORY_BYTES, PROCESSES, Room, room
from benchmarks.sandbox_times import PYTHON
from sandboxes.interface import Sandbox, SandboxLost
from sandboxes.opened import open_sandbox

PLENTY = {"memory": 2**50, "processes": 2**30, "descriptors": 2**30}


def one(value: float) -> Distribution:
    return Distribution.of([value])


def judged(**changed: float) -> dict[str, bool | None]:
    given = {
        "cold": 20.0,
        "pooled": 0.5,
        "over": 20.0,
        "gateway": 2.0,
        "sandboxes": 1000,
        "share": 1.0,
        "seen": 1.0,
    } | changed
    found = headlines(
        {"cold sandbox": one(given["cold"]), "pooled": one(given["pooled"])},
        {f"docker run / {kind}": one(given["over"]) for kind in ("cold sandbox", "life cycle", "pooled")}
        | {f"observed {what} / watched {what}": one(given["seen"]) for what in ("cell", "exec", "program")},
        {"gateway, Gbit/s": one(given["gateway"])},
        {"sandboxes": given["sandboxes"], "share_answered": given["share"]},
    )
    return {headline.what: headline.met for headline in found}


def test_ratios_are_taken_turn_by_turn() -> None:
    found = ratios([10.0, 20.0, 90.0], [1.0, 40.0, 30.0])
    assert (found.median, found.min, found.max) == (3.0, 0.5, 10.0)  # of the medians it would be 0.67
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0])


def test_all_targets_met_at_their_very_limits() -> None:
    assert set(judged(cold=25, pooled=1, over=10, gateway=1, seen=1.05).values()) == {True}


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"cold": 25.01}, "cold start to first exec, ms"),
        ({"pooled": 1.01}, "pooled acquire + exec, ms"),
        ({"gateway": 0.99}, "gateway, Gbit/s"),
        ({"share": 0.999}, "share of 1,000 living sandboxes that answers"),
    ],
)
def test_each_target_is_missed_alone(changed: dict[str, float], missed: str) -> None:
    assert [name for name, verdict in judged(**changed).items() if verdict is False] == [missed]


def test_observing_may_cost_a_twentieth() -> None:
    missed = [name for name, verdict in judged(seen=1.051).items() if verdict is False]
    assert missed == [f"observed {what} / watched {what}" for what in ("cell", "exec", "program")]


def test_a_thousand_sandboxes_are_not_judged_by_fifty() -> None:
    assert judged(sandboxes=50)["share of 1,000 living sandboxes that answers"] is None


def test_without_docker_its_ratios_are_not_measured() -> None:
    found = headlines(
        {"cold sandbox": one(20), "pooled": one(1)},
        {},
        {"gateway, Gbit/s": one(2)},
        {"sandboxes": 1000, "share_answered": 1.0},
    )
    assert [(headline.value, headline.met) for headline in found if "docker" in headline.what] == [(None, None)] * 3


@pytest.mark.parametrize(
    ("scarce", "each"), [("memory", MEMORY_BYTES), ("processes", PROCESSES), ("descriptors", DESCRIPTORS)]
)
def test_what_is_scarce_bounds_the_sandboxes_and_is_named(scarce: str, each: int) -> None:
    assert room(1000, PLENTY) == Room(1000, None)
    assert room(1000, PLENTY | {scarce: 7 * each + 1}) == Room(7, f"{scarce}: 7 sandboxes of 1000 fit")
    assert room(1000, PLENTY | {scarce: -1}).sandboxes == 0


@pytest.mark.parametrize(
    ("names", "stale"),
    [
        (("memory.max", "memory.current"), "inactive_file"),
        (("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_inactive_file"),
    ],
)
def test_a_cgroup_above_bounds_memory_and_processes(
    names: tuple[str, str], stale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an ordinary user's limits do: a stand-in for /proc and a tree in which the parent has the limits."""
    proc, tree = tmp_path / "proc", tmp_path / "tree"
    own = tree / "parent" / "own"
    for folder in (proc / "self", proc / "sys" / "kernel", own):
        folder.mkdir(parents=True)
    version_2 = names[0] == "memory.max"
    kind, options = ("cgroup2", "rw") if version_2 else ("cgroup", "rw,memory,pids")
    (proc / "self/cgroup").write_text("0::/parent/own\n" if version_2 else "3:memory,pids:/parent/own\n")
    (proc / "self/mountinfo").write_text(f"30 20 0:26 / {tree} rw - {kind} cgroup {options}\n")
    (proc / "meminfo").write_text(f"MemTotal: {2**24} kB\nMemAvailable: {2**24} kB\n")
    (proc / "loadavg").write_text("0.00 0.00 0.00 1/100 4711\n")
    (proc / "sys/kernel/pid_max").write_text("32768\n")
    (proc / "sys/kernel/threads-max").write_text("192000\n")
    for folder in (own, own.parent):
        (folder / "cgroup.procs").write_text("")
    for name, lines in zip((*names, "memory.stat", "pids.max", "pids.current"),
                          (5 * 2**30, 2 * 2**30, f"{stale} {2**20}", 2000, 400), strict=True):  # fmt: skip
        (own.parent / name).write_text(f"{lines}\n")
    monkeypatch.setattr(sandbox_room, "PROC", proc)
    spare = sandbox_room.spare()
    assert spare["memory"] == 3 * 2**30 + 2**20 - 2**34 // 10
    assert spare["processes"] == 1600 - sandbox_room.KEPT_FREE


def test_this_machine_has_room_for_something() -> None:
    spare = sandbox_room.spare()
    assert set(spare) == set(PLENTY)
    assert room(1, spare) == Room(1, None)


async def test_every_living_sandbox_answers_is_counted_and_is_closed() -> None:
    others = sandbox_alive._descendants(os.getpid())
    found = await sandbox_alive.alive(3, Room(3, None))
    assert (found.sandboxes, found.share_answered, found.failures, found.bound) == (3, 1.0, {}, None)
    assert found.processes_per_sandbox >= 2
    assert found.mib_per_sandbox > 1 or found.processes_unseen
    assert found.descriptors_per_sandbox >= 1
    assert sandbox_alive._descendants(os.getpid()) <= others


async def test_sandboxes_that_do_not_answer_are_counted_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Sandbox] = []

    async def open_and_lose_one(spec: object) -> Sandbox:
        made.append(await open_sandbox(spec))
        if len(made) == 4:
            await made[0].close()
        return made[-1]

    monkeypatch.setattr(sandbox_alive, "open_sandbox", open_and_lose_one)
    monkeypatch.setattr(sandbox_alive, "AT_ONCE", 1)
    found = await sandbox_alive.alive(4, Room(4, None))
    assert (found.sandboxes, found.share_answered, found.failures) == (3, 0.75, {"lost: it was closed": 1})


async def test_no_sandbox_is_opened_once_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_alive, "kept_free_bytes", lambda: 2**60)
    found = await sandbox_alive.alive(3, Room(3, None))
    assert (found.sandboxes, found.share_answered) == (0, 0.0)
    assert found.bound is not None
    assert found.bound.startswith("memory: ")


async def test_sandboxes_are_closed_when_the_benchmark_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Sandbox] = []
    all_made = asyncio.Event()

    async def open_and_report(spec: object) -> Sandbox:
        made.append(await open_sandbox(spec))
        if len(made) == 3:
            all_made.set()
        return made[-1]

    monkeypatch.setattr(sandbox_alive, "open_sandbox", open_and_report)
    running = asyncio.create_task(sandbox_alive.alive(1000, Room(1000, None)))
    await all_made.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for sandbox in made:
        with pytest.raises(SandboxLost):
            await sandbox.run_python("1")


async def test_the_same_source_feeds_gateway_proxies_and_the_direct_connection() -> None:
    async with transfers(0.05) as kinds:
        found = {kind: await transfer() for kind, transfer in kinds.items()}
        again = await kinds["gateway, Gbit/s"]()
    assert list(found) == ["gateway, Gbit/s", "sockets proxy, Gbit/s", "streams proxy, Gbit/s", "direct, Gbit/s"]
    assert all(rate > 0 for rate in (*found.values(), again))


def test_docker_runs_the_statement_and_nothing_of_it_stays() -> None:
    missing = [name for name in ("docker", *sandbox_docker.PROGRAMS) if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and docker.io; missing: {missing}")
    with docker() as peer:
        done = subprocess.run([*peer.command, *PYTHON], env=peer.environment, capture_output=True, text=True)
        assert (done.stdout, done.returncode) == ("42\n", 0)
        image = peer.command[-1]
        left = subprocess.run(["docker", "ps", "--all", "--quiet", "--filter", f"ancestor={image}"],
                              env=peer.environment, capture_output=True, text=True, check=True)  # fmt: skip
        assert left.stdout == ""
        address = peer.environment.get("DOCKER_HOST", "")
    if "own" in peer.description:
        assert not Path(address.removeprefix("unix://")).parent.exists()


@pytest.mark.parametrize(("present", "named"), [((), "docker is missing"), (("docker",), "dockerd, containerd, runc")])
def test_why_docker_is_not_measured_is_reported(
    present: tuple[str, ...], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in present:
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DockerMissing, match=f"{named}.*apt-get install docker.io"):
        with docker():
            pass


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"  # until process 1 reaps it
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_benchmark_that_is_told_to_end_closes_its_sandboxes_first() -> None:
    """As a job in the background, which a shell starts with SIGINT ignored."""
    ignoring = 'trap "" INT; exec "$0" "$@"'
    command = ["sh", "-c", ignoring, sys.executable, "-m", "benchmarks.sandbox", "--rounds", "1000", "--without-docker"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        while len(below := sandbox_alive._descendants(running.pid)) < 6:  # two sandboxes of a pool
            assert running.poll() is None
        running.terminate()
        _, complaints = running.communicate(timeout=60)
    assert running.returncode != 0
    assert "KeyboardInterrupt" in complaints
    assert "never retrieved" not in complaints
    assert not [pid for pid in below if _runs(pid)]


def test_the_whole_benchmark_writes_every_number(tmp_path: Path) -> None:
    summarised = tmp_path / "told.json"
    small = ["--rounds", "1", "--alive", "2", "--seconds", "0.2", "--without-docker", "--json", str(summarised)]
    done = subprocess.run([sys.executable, "-m", "benchmarks.sandbox", *small], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(summarised.read_text())
    assert report["docker"] == "not measured: --without-docker"
    assert report["docker"] in done.stdout
    assert {"cold sandbox", "life cycle", "pooled", "cell in session", "snapshot", "restore", "freeze"} <= set(
        report["milliseconds"]
    )
    for spread in (*report["milliseconds"].values(), *report["rates"].values()):
        assert set(spread) == {"median", "p10", "p90", "min", "max", "n"}
    assert {"observed exec / watched exec", "observed 20 files written / watched 20 files written"} <= set(
        report["ratios"]
    )
    assert report["alive"]["sandboxes"] == 2
    assert next(iter(report)) == "headline"
    assert [row["met"] for row in report["headline"] if "docker" in row["what"]] == [None] * 3
    assert all(set(row) == {"what", "value", "spread", "target", "met"} for row in report["headline"])
