"""The simulated cluster: by hand where a hand can count, and what must hold of any."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scale import headlines_of, simulated
from benchmarks.scale_constants import COMPLETIONS, cluster, constants, this_machine
from benchmarks.scale_simulation import Layout, Machine, Plan, SimulatedRun, Simulation, Workload
from devtools.home import ROOT

ALIKE = Workload(1, 1, 100, 0.0, 0, 50, 1.5, (0.0, 0.0))
"""One turn of 100 tokens after a prompt of 50, no tool."""
STRAGGLING = Workload(3, 20, 20, 0.5, 5, 10, 1.2, (0.5, 60.0))
MACHINE = Machine(
    gpus=2,
    cores=4,
    rows_per_gpu=4,
    step_s=0.01,
    row_s=0.001,
    train_token_gpu_s=0.002,
    weights_s=0.5,
    move_s=0.2,
    sandbox_cpu_s=0.0,
    exec_cpu_s=0.0,
    call_cpu_s=0.0,
    event_cpu_s=0.0,
)


def ran(plan: Plan, workload: Workload = ALIKE, machine: Machine = MACHINE, *, steps: int = 3) -> SimulatedRun:
    return Simulation(machine, workload, plan).run(steps, warm_up=plan.async_ratio + 1)


def test_a_synchronous_step_is_the_sum_of_its_parts() -> None:
    """8 rows on 2 GPUs: 4 on each, (0.01 + 4 x 0.001) s a token; 8 x 150 tokens x 0.002 s on 2 GPUs; the weights."""
    outcome = ran(Plan("colocated", 0, 8))
    step_s = 100 * 0.014 + 8 * 150 * 0.002 / 2 + 0.5
    assert 3600 / outcome.steps_per_hour == pytest.approx(step_s)
    assert outcome.gpu_idle_share == pytest.approx(0)
    assert (outcome.staleness_max, outcome.in_flight_max) == (0, 8)


def test_rows_beyond_the_cache_wait_for_their_turn() -> None:
    outcome = ran(Plan("colocated", 0, 16))
    assert 3600 / outcome.steps_per_hour == pytest.approx(2 * 100 * 0.014 + 16 * 150 * 0.002 / 2 + 0.5)


def test_gpus_of_a_trainer_apart_are_idle_while_nothing_overlaps() -> None:
    outcome = ran(Plan("apart", 0, 4, trainer_gpus=1))
    decoding_s, training_s, weights_s = 100 * 0.014, 4 * 150 * 0.002, 0.5
    whole_s = decoding_s + training_s + weights_s
    assert 3600 / outcome.steps_per_hour == pytest.approx(whole_s)
    assert outcome.gpu_idle_share == pytest.approx((decoding_s + training_s) / (2 * whole_s))


def test_overlap_costs_what_takes_longest() -> None:
    """Ratio 1 decodes one batch while another one trains; only the weights stop both."""
    slow_trainer = replace(MACHINE, train_token_gpu_s=0.02)
    outcome = ran(Plan("apart", 1, 4, trainer_gpus=1), machine=slow_trainer, steps=6)
    assert 3600 / outcome.steps_per_hour == pytest.approx(4 * 150 * 0.02 + 0.5)
    assert outcome.bottleneck == "trainer"
    assert outcome.staleness_max == 1


@pytest.mark.parametrize(
    ("slow", "named"),
    [
        ({"exec_cpu_s": 5.0, "cores": 1}, "sandbox processors"),
        ({"call_cpu_s": 2.0}, "generator's actor"),
        ({"event_cpu_s": 50.0}, "event log"),
        ({"train_token_gpu_s": 0.5}, "trainer"),
        ({}, "stragglers"),
    ],
)
def test_the_bottleneck_is_what_was_made_slow(slow: dict[str, float], named: str) -> None:
    plan = Plan("apart", 2, 8, trainer_gpus=1)
    outcome = ran(plan, STRAGGLING, replace(MACHINE, **slow), steps=6)  # type: ignore[arg-type]
    if named == "event log":  # it holds nobody up, so that it may even fall behind
        assert outcome.use[named] > 1
    assert outcome.bottleneck == named


def test_multiplexed_gpus_are_idle_less_than_divided_ones() -> None:
    machine = replace(MACHINE, gpus=8)
    divided, multiplexed = (ran(Plan(layout, 1, 32, 4), STRAGGLING, machine, steps=8) for layout in LAYOUTS[1:])
    assert multiplexed.moves > 0
    assert multiplexed.gpu_idle_share < divided.gpu_idle_share


LAYOUTS: tuple[Layout, ...] = ("colocated", "apart", "multiplexed")


@settings(deadline=None, max_examples=60)
@given(
    layout=st.sampled_from(LAYOUTS),
    ratio=st.integers(0, 4),
    batch=st.integers(1, 12),
    seed=st.integers(0, 1000),
    tail=st.floats(0.8, 3),
    move_s=st.floats(0, 3),
)
def test_no_rollout_is_older_than_the_ratio_and_every_run_comes_to_its_end(
    layout: Layout, ratio: int, batch: int, seed: int, tail: float, move_s: float
) -> None:
    """The simulation itself raises where a trajectory is too old, or nothing can happen any more."""
    machine, workload = replace(MACHINE, move_s=move_s), replace(STRAGGLING, tool_tail=tail)
    plan = Plan(layout, ratio, batch, 0 if layout == "colocated" else 1)
    outcome = Simulation(machine, workload, plan, seed=seed).run(5, warm_up=1)
    assert outcome.staleness_max <= ratio
    assert outcome.in_flight_max <= (ratio + 1) * batch
    assert 0 <= outcome.gpu_idle_share < 1
    assert outcome.use["decoding"] <= 1 + 1e-9


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    plan = Plan("multiplexed", 1, 8, 1)
    first, again, other = (Simulation(MACHINE, STRAGGLING, plan, seed=seed).run(3, warm_up=1) for seed in (1, 1, 2))
    assert first == again
    assert first.steps_per_hour != other.steps_per_hour


def test_every_constant_says_how_it_is_known() -> None:
    for name, constant in constants().items():
        assert constant.value > 0, name
        assert len(constant.source) > 10, name
    assert "http" in constants()["step_s"].source


def test_a_small_cluster_is_reported_with_its_gains() -> None:
    cases = list(simulated(constants(), [4], steps=1, seed=0))
    assert [case.outcome.plan.async_ratio for case in cases] == [0, 0, 1, 1, 4, 4, 0]
    headlines = headlines_of(cases)
    gains = [row for row in headlines if "over those of ratio 0" in row.what]
    assert len(gains) == 5
    assert all(row.met for row in headlines if "oldest rollout" in row.what)


def test_weights_through_rays_store_stop_decoding_for_longer() -> None:
    known = constants()
    assert cluster(known, gpus=8, weights="ray").weights_s > cluster(known, gpus=8).weights_s


def test_the_page_names_every_constant_with_its_value() -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    missing = [
        name for name, one in constants().items() if f"| `{name}` | {one.value:.3g} {one.unit}".rstrip() not in page
    ]
    assert missing == []


def test_the_page_says_of_this_machine_what_was_measured() -> None:
    report = json.loads((ROOT / "benchmarks" / "results" / "throughput.json").read_text())
    measured = report["settings"]["completions"]["palestra"]["trajectories_per_s"]
    page = (ROOT / "docs" / "scale.md").read_text()
    assert f"{measured['median']:.0f} trajectories a second in the setting `completions`" in page
    assert f"({measured['min']:.0f} to {measured['max']:.0f})" in page


def test_this_machine_is_as_fast_as_it_was_measured_to_be() -> None:
    """What ./dev bench throughput took apart (completions) adds up again."""
    outcome = ran(Plan("colocated", 0, 256), COMPLETIONS, this_machine(constants()))
    report = json.loads((ROOT / "benchmarks" / "results" / "throughput.json").read_text())
    measured = report["settings"]["completions"]["palestra"]["trajectories_per_s"]["median"]
    assert outcome.trajectories_per_s == pytest.approx(measured, rel=0.02)
