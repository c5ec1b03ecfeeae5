"""A run on Ray that samples from SGLang servers: one of them is killed, and its statistics are in the events."""

import os
from pathlib import Path

import psutil
import pytest

from engine.inference.sglang.factory import PYTHON
from tests.engine.cluster.ray_runs import LONGEST_S, RUN, RayRun, assert_each_trained_once, enters, kill

SGLANG = """
generator = "sglang"
[resources.sglang]
servers = 2
flags = ["max-total-tokens=8192"]
health_every_s = 0.5
start_timeout_s = 900
"""


@pytest.mark.backends
@pytest.mark.sglang
@pytest.mark.timeout(3000)
def test_a_killed_server_costs_a_run_on_ray_nothing_and_its_restart_is_measured(
    tmp_path: Path,
) -> None:
    assert os.environ.get(PYTHON), f"set {PYTHON} to an interpreter that has SGLang, or run ./dev test backends"
    run = RayRun(tmp_path, RUN.replace("steps = 4", "steps = 4\nstall_timeout_s = 60") + SGLANG)
    with run.started() as process:
        run.wait_for(process, enters("collect", 2))
        (line,) = (line for line in run.logged if line.startswith("SGLang server 0 ") and " as process " in line)
        kill(psutil.Process(int(line.split()[-1])).children()[0].pid)
        assert process.wait(LONGEST_S) == 0, run.output
    assert any(line.startswith("SGLang server 0 ") and "is gone" in line for line in run.logged)
    events = run.events()
    assert_each_trained_once(events)
    metrics = [event["values"] for event in events if event["kind"] == "metric" and "servers/up" in event["values"]]
    assert metrics[-1]["servers/restarts"] == 1
    assert all(values["servers/tokens_per_s"] > 0 and 0 < values["servers/cache_hit_rate"] < 1 for values in metrics)
    assert metrics[-1]["perf/memory_mib_server"] > 200
