"""The engine's side of the benchmark for real, on a model so small that it takes no time."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.engine_run import Engine
from benchmarks.measurement import PHASES, Comparison, Run, Step
from benchmarks.policies import start_policy
from benchmarks.report import as_json, cost_table, summary_table
from benchmarks.workload import Setting, Workload, spec_for
from engine.spec.run import RunSpec

TINY = {
    "model": {"layers": 1, "hidden_size": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 16},
    "schedule": {"steps": 3, "prompts_per_step": 2, "group_size": 4, "minibatch_trajectories": 8},
    "resources": {"threads": 1, "kv_slots": 4, "sandboxes": 1},
}


def tiny_spec(setting: Setting) -> RunSpec:
    spec = spec_for(setting, steps=3, threads=1).model_dump()
    return RunSpec.model_validate(
        {name: spec[name] | TINY.get(name, {}) if name in TINY else spec[name] for name in spec}
    )


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> list[Step]:
    spec = tiny_spec("completions")
    policy = start_policy("completions", spec, home=tmp_path_factory.mktemp("home"))
    workload = Workload("completions", spec.model_dump(mode="json"), str(policy), warmup_steps=1, timed_steps=2)
    return asyncio.run(Engine(workload).run())


def test_every_completion_has_exactly_the_sampled_tokens_that_the_peer_is_given(steps: list[Step]) -> None:
    assert [(step.trajectories, step.turns, step.sampled_tokens) for step in steps] == [(8, 8, 8 * 32)] * 3


def test_the_phases_fill_the_step(steps: list[Step]) -> None:
    for step in steps:
        assert min(step.rollout, step.score, step.update) > 0
        assert step.rollout + step.score + step.update == pytest.approx(step.seconds)


def test_json_and_table_hold_the_measured_numbers(steps: list[Step]) -> None:
    mine = Run("palestra", steps[1:], {"torch": "x"}, threads=1)
    slower = Run(
        "trl", [Step(**vars(step) | {"seconds": 2 * step.seconds}) for step in steps[1:]], {"trl": "y"}, threads=1
    )
    comparison = Comparison("completions", [mine], [slower])

    document = json.loads(json.dumps(as_json([comparison], machine={"cores": 2})))
    setting = document["settings"]["completions"]
    assert setting["pairs"] == 1
    assert setting["ratio"] == dict.fromkeys(("median", "p10", "p90", "min", "max"), 2.0) | {"n": 1, "of_pairs": [2.0]}
    assert setting["palestra"]["trajectories_per_s"]["median"] == mine.trajectories_per_s
    assert setting["palestra"]["tokens_per_trajectory"]["min"] == 32
    assert set(setting["trl"]["shares"]) == {*PHASES, "other"}
    assert [Step(**run) for run in setting["trl"]["runs"][0]["steps"]] == slower.steps

    printed = io.StringIO()
    console = Console(file=printed, width=120)
    console.print(summary_table([comparison]), cost_table([comparison]))
    assert "2.00 (2.00 to 2.00)" in printed.getvalue()
    assert f"{mine.shares()['rollout']:.0%}" in printed.getvalue()


def test_a_policy_is_made_once_and_again_when_the_model_changes(tmp_path: Path) -> None:
    spec = tiny_spec("completions")
    folder = start_policy("completions", spec, home=tmp_path)
    written = (folder / "model" / "model.safetensors").stat().st_mtime_ns
    assert start_policy("completions", spec, home=tmp_path) == folder
    assert (folder / "model" / "model.safetensors").stat().st_mtime_ns == written
    other = spec.model_copy(update={"model": spec.model.model_copy(update={"layers": 2})})
    assert start_policy("completions", other, home=tmp_path) != folder
