"""Curves, plans and runs of the learning benchmark."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.learning_plan import PLANS, BadPlan, Plan, plan_from_file, plan_of_recipes
from benchmarks.learning_runs import RunFailed, RunResult, run_plan
from benchmarks.learning_statistics import area, band, first_step_at, headlines, spread, summary

TINY = """
claim = "two steps of each"
metric = "eval/success_greedy"
seeds = 2

[run]
environment = {levels = [1]}
dataset = {heldout_tasks = 16}
model = {layers = 1, hidden_size = 32, heads = 2, kv_heads = 1, head_dim = 16, intermediate_size = 64}
resources = {threads = 1, kv_slots = 16, sandboxes = 4}
schedule = {steps = 2, prompts_per_step = 4, group_size = 4, minibatch_trajectories = 16}
evaluation = {every = 1, tasks = 16, interim_tasks = 8}

[run.recipe]
stages = [{data = {kind = "demonstrations", count = 64}, steps = 4, batch_size = 16}]

[arms.grpo]
preset = "grpo"

[arms.again]
preset = "grpo"
"""


def plan(tmp_path: Path, text: str = TINY, **options: int) -> Plan:
    file = tmp_path / "plan.toml"
    file.write_text(text)
    return plan_from_file(file, **options)


def test_area_by_hand() -> None:
    assert area({0: 0.0, 10: 1.0}) == 0.5
    assert area({0: 0.0, 1: 1.0, 4: 1.0}) == pytest.approx((0.5 + 3.0) / 4)
    assert area({3: 0.7}) == 0.7


def test_the_first_step_at_a_height() -> None:
    assert first_step_at({0: 0.1, 5: 0.6, 10: 0.5}, 0.55) == 5
    assert first_step_at({0: 0.1, 5: 0.6}, 0.7) is None


def test_spread_by_hand() -> None:
    assert (spread([1.0, 3.0]).mean, spread([1.0, 3.0]).error) == (2.0, 1.0)
    assert math.isnan(spread([1.0]).error)


def outcome(arm: str, seed: int, final: float) -> RunResult:
    curves = {"eval/success_greedy": {0: 0.0, 10: final}, "train/grad_norm": {1: 1.0, 2: 3.0}}
    return RunResult(arm, seed, curves)


def test_differences_are_paired_by_seed() -> None:
    summarised = summary(
        "eval/success_greedy",
        [outcome("a", 0, 0.2), outcome("b", 0, 0.5), outcome("a", 1, 0.6), outcome("b", 1, 0.9)],
    )
    assert summarised["baseline"] == "a"
    assert summarised["differences"]["b"]["final"]["mean"] == pytest.approx(0.3)
    assert summarised["differences"]["b"]["final"]["error"] == pytest.approx(0.0, abs=1e-12)
    assert summarised["arms"]["a"]["grad_norm"]["mean"] == 2.0
    assert "tool_error_rate" not in summarised["arms"]["a"]


def test_a_height_never_reached_counts_as_one_step_more_and_is_reported() -> None:
    summarised = summary("eval/success_greedy", [outcome("a", 0, 1.0), outcome("b", 0, 0.1)])
    assert summarised["arms"]["b"]["steps_to_90"]["mean"] == 11
    assert summarised["arms"]["b"]["reached_90"]["mean"] == 0


def test_what_contexts_cost_is_that_of_the_last_evaluation_and_begins_the_report() -> None:
    def with_context(arm: str, seed: int, tokens: float) -> RunResult:
        costs = {
            "eval/context/turn_tokens": {0: 999.0, 10: tokens},
            "eval/context/read_tokens": {0: 1.0, 10: 4 * tokens},
        }
        return RunResult(arm, seed, {**outcome(arm, seed, 0.5).curves, **costs})

    runs = [("a", 0, 300.0), ("b", 0, 200.0), ("a", 1, 320.0), ("b", 1, 240.0)]
    summarised = summary("eval/success_greedy", [with_context(*run) for run in runs])
    assert summarised["arms"]["a"]["turn_tokens"]["values"] == (300.0, 320.0)
    assert summarised["arms"]["a"]["first"]["mean"] == 0.0
    assert summarised["differences"]["b"]["read_tokens"]["mean"] == pytest.approx(-360)
    values = {headline.what: headline.value for headline in headlines(summarised)}
    assert values["b: tokens before a turn"] == 220.0
    plain = headlines(summary("eval/success_greedy", [outcome("a", 0, 1.0), outcome("b", 0, 1.0)]))
    assert not any("tokens" in headline.what for headline in plain)


def test_one_start_is_that_of_the_first_seed(tmp_path: Path) -> None:
    apart, shared = plan(tmp_path), plan(tmp_path, "one_start = true\n" + TINY)
    assert [apart.start_of(seed) for seed in apart.seeds] == [0, 1]
    assert [shared.start_of(seed) for seed in shared.seeds] == [0, 0]
    assert apart.digest != shared.digest
    assert shared.cold_start_spec(0).evaluation.tasks == 1


def test_a_band_covers_the_seeds_that_have_the_step() -> None:
    steps, means, widths = band([outcome("a", 0, 0.2), outcome("a", 1, 0.4)], "eval/success_greedy")
    assert (steps, means) == ([0, 10], [0.0, pytest.approx(0.3)])
    assert widths[1] == pytest.approx(1.96 * 0.1)


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_plan_of_the_repository_is_valid(path: Path) -> None:
    read = plan_from_file(path)
    assert read.claim
    assert len(read.seeds) >= 5


def test_a_plan_that_makes_no_sense_is_refused_with_the_run_that_would_be(tmp_path: Path) -> None:
    with pytest.raises(BadPlan, match=r"grpo 0: schedule.minibatch_trajectories = 7: .*use a divisor of 16"):
        plan(tmp_path, TINY.replace("minibatch_trajectories = 16", "minibatch_trajectories = 7"))
    with pytest.raises(BadPlan, match="seed: unknown"):
        plan(tmp_path, "seed = 3\n" + TINY)
    with pytest.raises(BadPlan, match="nothing to compare"):
        plan(tmp_path, TINY.partition("[arms.again]")[0])
    with pytest.raises(BadPlan, match=r"--env = chess: there is no such sample; use one of: .*python-math"):
        plan_of_recipes("chess", ["grpo", "rloo"], 1)


def test_the_digest_changes_with_the_settings_and_not_with_the_seeds(tmp_path: Path) -> None:
    assert plan(tmp_path).digest == plan(tmp_path, seeds=9).digest
    assert plan(tmp_path).digest != plan(tmp_path, TINY.replace("steps = 2", "steps = 3")).digest


@pytest.mark.slow
@pytest.mark.soak  # a benchmark of several runs
def test_arms_share_their_cold_start_and_a_finished_run_is_not_done_again(tmp_path: Path) -> None:
    lines: list[str] = []
    first = run_plan(plan(tmp_path, seeds=1), tmp_path / "out", processes=1, log=lines.append)
    assert lines[0] == "cold start, seed 0"
    assert len(first) == 2
    same, again = (result.curves for result in first)
    timed = [key for key in same if key.startswith("perf/")]
    assert {key: value for key, value in same.items() if key not in timed} == {
        key: value for key, value in again.items() if key not in timed
    }
    assert sorted(same["eval/success_greedy"]) == [0, 1, 2]
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["claim"] == "two steps of each"
    before = (tmp_path / "out" / "grpo" / "0" / "curves.json").stat().st_mtime_ns
    run_plan(plan(tmp_path, seeds=2), tmp_path / "out", processes=1, log=lines.append)
    assert (tmp_path / "out" / "grpo" / "0" / "curves.json").stat().st_mtime_ns == before
    assert lines.count("cold start, seed 0") == 1


def test_results_of_another_plan_are_not_mixed_in(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "plan.json").write_text(json.dumps({"digest": "another"}))
    with pytest.raises(RunFailed, match="another plan; give another --out"):
        run_plan(plan(tmp_path), tmp_path / "out", processes=1, log=print)
