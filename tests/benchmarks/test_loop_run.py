"""A whole run as a benchmark's steps: what its log says, of the workload's own start weights."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.measurement import Run
from benchmarks.policies import start_policy
from benchmarks.workload import Workload
from tests.benchmarks.test_engine_run import tiny_spec


@pytest.mark.timeout(300)
def test_a_run_is_its_timed_steps_and_each_has_its_rollouts(tmp_path: Path) -> None:
    spec = tiny_spec("completions")
    policy = start_policy("completions", spec, home=tmp_path)
    overlapping = spec.model_dump(mode="json")
    overlapping["schedule"] |= {"async_ratio": 1, "steps": 3}
    Workload("slow-tools", overlapping, str(policy), warmup_steps=1, timed_steps=2).write(tmp_path / "workload.json")
    command = [sys.executable, "-m", "benchmarks.loop_run", str(tmp_path / "workload.json"), str(tmp_path / "run.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = Run.read(tmp_path / "run.json")
    assert [step.trajectories for step in run.steps] == [8, 8]
    for step in run.steps:
        assert step.turns >= 8
        assert step.sampled_tokens >= step.turns
        assert min(step.score, step.update, step.cpu) > 0
        assert step.rollout >= 0
        assert step.rollout + step.score + step.update == pytest.approx(step.seconds)
