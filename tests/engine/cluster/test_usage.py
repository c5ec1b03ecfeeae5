"""What a run's processes take: the arithmetic between two readings, the driver's table, and a run on Ray."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.cluster import process_meter
from engine.cluster.process_meter import ProcessMeter, descendants, tree_reading, visible_gpus
from engine.loop.usage import by_role, of_servers, process_uses, server_uses
from engine.spec.usage import GpuUse, Health, ProcessReading, ServerReading, UsageReading

ROOT = Path(__file__).parents[3]
FAMILY = """
import os, threading, time
def child(depth):
    if os.fork() == 0:
        if depth:
            child(depth - 1)
        else:
            os.write(1, b"!")
        time.sleep(60)
child(2)
threading.Thread(target=child, args=(0,)).start()
time.sleep(60)
"""
TABLE = """\
0, GPU-aaaa, NVIDIA H200, 87, 40960, 143771
1, GPU-bbbb, NVIDIA H200, [N/A], 1024, 143771
"""


def process(cpu_s: float, *, name: str = "rollout-0", pid: int = 7, began_at: float = 100.0) -> ProcessReading:
    return ProcessReading(name, "rollout", pid, began_at=began_at, cpu_s=cpu_s, memory_bytes=2**30)


def server(sampled: int, *, began_at: float = 100.0) -> ServerReading:
    return ServerReading(
        0, "http://127.0.0.1:1", "up", "", 2, 1, 3, sampled, 100, 60, restarts=1, version=4, began_at=began_at, pid=None
    )


def test_processor_time_between_two_readings_is_counted_in_processors() -> None:
    before, now = UsageReading(200.0, (process(30.0),)), UsageReading(210.0, (process(45.0),))
    assert [use.cores for use in process_uses(before, now)] == [1.5]


@pytest.mark.parametrize("known", [(), (process(900.0, pid=8),), (process(900.0, name="rollout-1"),)])
def test_a_process_that_was_not_there_before_is_measured_since_it_began(known: tuple[ProcessReading, ...]) -> None:
    now = UsageReading(110.0, (process(5.0),))
    assert [use.cores for use in process_uses(UsageReading(109.0, known), now)] == [0.5]


def test_a_child_that_has_ended_makes_no_negative_use() -> None:
    before, now = UsageReading(200.0, (process(30.0),)), UsageReading(210.0, (process(20.0),))
    assert [use.cores for use in process_uses(before, now)] == [0.0]


def test_a_servers_tokens_are_counted_since_the_event_before_and_its_hits_since_the_attempt_began() -> None:
    before, now = UsageReading(200.0, (), (server(500),)), UsageReading(210.0, (), (server(700),))
    (use,) = server_uses(before, now)
    assert (use.tokens_per_s, use.cache_hit_rate, use.running, use.queued) == (20.0, 0.6, 2, 1)
    (of_a_new_generator,) = server_uses(before, UsageReading(210.0, (), (server(700, began_at=205.0),)))
    assert of_a_new_generator.tokens_per_s == 140.0


def test_servers_of_a_judge_are_counted_apart_from_those_of_the_policy() -> None:
    judging = replace(server(100), role="judge", number=0)
    before = UsageReading(200.0, (), (server(500), judging))
    now = UsageReading(210.0, (), (server(700), replace(judging, sampled_tokens=150, health="down")))
    values = of_servers(server_uses(before, now))
    assert (values["servers/tokens_per_s"], values["judge_servers/tokens_per_s"]) == (20.0, 5.0)
    assert (values["servers/up"], values["judge_servers/up"]) == (1, 0)
    assert set(of_servers(server_uses(before, UsageReading(210.0, (), (server(700),))))) == {
        f"servers/{name}" for name in ("up", "running", "queued", "tokens_per_s", "cache_hit_rate", "restarts")
    }


@pytest.mark.parametrize(
    ("policy", "judge", "awaited"),
    [("up", "up", False), ("up", "down", True), ("up", "starting", True), ("down", "up", True), ("up", None, False)],
)
def test_a_run_waits_for_servers_of_each_role(policy: Health, judge: Health | None, awaited: bool) -> None:
    servers = [replace(server(0), health=policy)]
    servers += [] if judge is None else [replace(server(0), health=judge, role="judge")]
    assert UsageReading(200.0, (), tuple(servers)).awaits_servers == awaited


def test_a_role_has_the_sum_of_its_processes_and_the_mean_of_its_gpus() -> None:
    gpus = tuple(GpuUse(name="0 H200", busy=busy, memory_bytes=1, total_bytes=2) for busy in (0.2, 0.6))
    processes = (replace(process(5.0), gpus=gpus), process(10.0, name="rollout-1", pid=8))
    uses = process_uses(UsageReading(0.0, ()), UsageReading(110.0, processes))
    assert by_role(uses) == {"perf/cpu_rollout": 1.5, "perf/memory_mib_rollout": 2048.0, "perf/gpu_rollout": 0.4}


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["0", "1"]), ("1", ["1"]), ("GPU-aaaa", ["0"]), ("", []), ("1,0", ["0", "1"])],
)
def test_a_process_has_the_gpus_that_it_sees(visible: str | None, names: list[str]) -> None:
    assert [gpu.name.split()[0] for gpu in visible_gpus(TABLE, visible)] == names


def test_what_a_driver_does_not_report_is_nought() -> None:
    first, second = visible_gpus(TABLE, None)
    assert (first.busy, first.memory_bytes, first.total_bytes) == (0.87, 40960 * 2**20, 143771 * 2**20)
    assert second.busy == 0.0


def test_a_meter_measures_its_own_process_and_a_tree_all_of_its_children() -> None:
    own = ProcessMeter("loop", "loop").reading()
    assert own.pid == os.getpid()
    assert own.cpu_s > 0
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    root = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert root.stdout is not None
    root.stdout.readline()
    both = tree_reading("server-0", "server", root.pid)
    root.communicate(b"\n")
    assert both is not None
    assert both.memory_bytes > 10 * 2**20
    assert tree_reading("server-0", "server", root.pid) is None


TINY = """
name = "t"
[environment]
id = "sokoban"
levels = [1]
max_turns = 2
[model]
layers = 1
hidden_size = 16
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 24
context_tokens = 256
[recipe]
stages = []
credit = {kind = "grpo"}
[schedule]
steps = 2
prompts_per_step = 2
group_size = 4
minibatch_trajectories = 8
[evaluation]
tasks = 2
[resources]
threads = 1
kv_slots = 8
rollout_workers = 2
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("in_process", [pytest.param(False, marks=pytest.mark.soak), True], ids=["ray", "one process"])
def test_a_run_tells_what_each_of_its_processes_takes(tmp_path: Path, in_process: bool) -> None:
    (tmp_path / "run.toml").write_text(TINY)
    command = [sys.executable, "-m", "engine", "train", "run.toml", "--run-dir", "run"]
    ended = subprocess.run(
        [*command, *(["--in-process"] if in_process else [])],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    events = [json.loads(line) for file in sorted((tmp_path / "run/spool").glob("*.jsonl")) for line in file.open()]
    assert_metrics_by_role(events, {"all"} if in_process else {"generator", "learner", "loop", "rollout"})


def assert_metrics_by_role(events: list[dict[str, Any]], roles: set[str]) -> None:
    values = next(event["values"] for event in reversed(events) if "perf/rss_mib" in event.get("values", {}))
    assert {key.removeprefix("perf/cpu_") for key in values if key.startswith("perf/cpu_")} == roles
    assert min(values[f"perf/cpu_{role}"] for role in roles) >= 0
    assert max(values[f"perf/cpu_{role}"] for role in roles) > 0
    memory = [value for key, value in values.items() if key.startswith("perf/memory_mib_")]
    assert len(memory) == len(roles)
    assert all(20 < mib < 8192 for mib in memory)
    assert sum(memory) == pytest.approx(values["perf/rss_mib"])


def test_equal_pids_of_two_nodes_are_two_processes() -> None:
    before = UsageReading(100.0, (process(5.0, name="generator"), process(1.0, name="rollout-0")))
    now = UsageReading(110.0, (process(15.0, name="generator"), process(2.0, name="rollout-0")))
    assert [use.cores for use in process_uses(before, now)] == [1.0, 0.1]


def test_children_of_a_thread_that_ends_in_the_middle_of_a_look_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True)
    look, looks = process_meter._children_of_thread, list[str]()

    def ends(pid: int, thread: str) -> list[int] | None:
        looks.append(thread)
        return look(pid, thread) if len(looks) > 2 else None

    monkeypatch.setattr(process_meter, "_children_of_thread", ends)
    try:
        assert root.stdout is not None
        assert root.stdout.read(2) == b"!!"
        process = psutil.Process(root.pid)
        assert sorted(each.pid for each in descendants(process)) == sorted(
            each.pid for each in process.children(recursive=True)
        )
    finally:
        os.killpg(root.pid, signal.SIGKILL)
        root.communicate()


@pytest.mark.parametrize("listed", [True, False])
def test_descendants_are_those_of_all_generations_and_threads(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not listed:
        monkeypatch.setattr("engine.cluster.process_meter.os.path.exists", lambda _: False)
    root = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert root.stdout is not None
        assert root.stdout.read(2) == b"!!"
        process = psutil.Process(root.pid)
        found = [each.pid for each in descendants(process)]
        assert len(found) == 4
        assert sorted(found) == sorted(each.pid for each in process.children(recursive=True))
    finally:
        os.killpg(root.pid, signal.SIGKILL)
        root.communicate()
    assert tree_reading("server-0", "server", root.pid) is None
