"""Runs on Ray that sample from SGLang servers, and are judged by others: one is killed, and statistics are told."""

import os
from pathlib import Path

import psutil
import pytest

from engine.inference.sglang.factory import PYTHON
from tests.engine.cluster.ray_runs import LONGEST_S, RUN, RayRun, assert_each_trained_once, enters, kill
from tests.engine.environments.qa.test_qa import MAPPING, ROWS, stored
from tests.engine.inference.sglang.judging_model import end_turns_soon, make_judging_model

JUDGE_SERVER = "SGLang server of the judge 0 "
SGLANG = """
generator = "sglang"
[resources.sglang]
servers = 2
flags = ["max-total-tokens=8192"]
health_every_s = 0.5
health_misses = 40
start_timeout_s = 900
"""
"""A server that is late, on a busy machine, is no dead one: whose process has ended is seen at the next look."""

JUDGED = """
name = "judged"
seed = 3
[environment]
id = "qa"
max_turns = 1
max_turn_tokens = 12
[environment.verifier]
kind = "rubric"
rubric = "Is it right?"
judge = { endpoint = "resources.judge", model = "judge", max_tokens = 128, retries = 0 }
[dataset]
folder = "ROWS"
train_tasks = 25
heldout_tasks = 5
[model]
kind = "pretrained"
path = "tiny"
context_tokens = 384
[recipe]
preset = "grpo"
stages = []
[recipe.credit]
kind = "attribution"
judge = { kind = "llm", endpoint = "resources.judge", model = "judge", max_tokens = 128, retries = 0 }
[schedule]
steps = 4
prompts_per_step = 2
group_size = 2
minibatch_trajectories = 4
checkpoint_every = 1
[evaluation]
tasks = 2
interim_tasks = 2
[resources]
threads = 1
kv_slots = 8
sandboxes = 2
generator = "sglang"
[resources.sglang]
flags = ["max-total-tokens=8192"]
health_every_s = 0.5
health_misses = 40
start_timeout_s = 900
[resources.judge]
path = "JUDGE"
dtype = "float32"
health_every_s = 0.5
health_misses = 40
start_timeout_s = 900
"""
"""Turns and answers are judged, by the same model."""


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


@pytest.mark.backends
@pytest.mark.sglang
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "where", [(), pytest.param(("--in-process",), marks=pytest.mark.soak)], ids=["ray", "one process"]
)
def test_a_judge_on_servers_of_the_run_is_killed_and_every_turn_and_answer_is_judged(
    tmp_path: Path, where: tuple[str, ...]
) -> None:
    assert os.environ.get(PYTHON), f"set {PYTHON} to an interpreter that has SGLang, or run ./dev test backends"
    make_judging_model(tmp_path / "judge")
    rows = stored(tmp_path / "dataset", ROWS, MAPPING).folder
    run = RayRun(tmp_path, JUDGED.replace("ROWS", str(rows)).replace("JUDGE", str(tmp_path / "judge")))
    end_turns_soon(tmp_path / "tiny")
    with run.started(*where) as process:
        run.wait_for(process, enters("collect", 2))
        (line,) = (line for line in run.logged if line.startswith(JUDGE_SERVER) and " as process " in line)
        kill(psutil.Process(int(line.split()[-1])).children()[0].pid)
        assert process.wait(LONGEST_S) == 0, run.output
    assert any(line.startswith(JUDGE_SERVER) and "is gone" in line for line in run.logged)
    events = run.events()
    assert_each_trained_once(events)
    metrics = [event["values"] for event in events if event["kind"] == "metric" and "judge/calls" in event["values"]]
    assert [(values["judge/failed"], values["judge/good"]) for values in metrics] == [(0, 1.0)] * 4
    assert sum(values["judge/calls"] for values in metrics) > 0
    rollouts = [event["trajectory"] for event in events if event["kind"] == "trajectory"]
    assert not any(rollout["stop_reason"] == "verifier-failed" for rollout in rollouts)
    assert any(rollout["success"] for rollout in rollouts), "an answer got its 7 points of 10"
    of_judge = [values for values in metrics if "judge_servers/up" in values]
    assert of_judge[-1]["judge_servers/restarts"] == 1
    assert all(values["servers/restarts"] == 0 and values["perf/memory_mib_judge"] > 200 for values in of_judge)
    assert any(values["judge_servers/tokens_per_s"] > 0 for values in of_judge)
