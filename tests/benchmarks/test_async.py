"""The benchmark of overlapping runs: its slow tools, its simulated GPUs, and what it concludes."""

import asyncio
import time
import tomllib
from random import Random
from statistics import fmean

import pytest

from benchmarks.async_ratio import (
    ARMS,
    SYNCHRONOUS,
    Arm,
    Measured,
    bounds,
    half_width,
    headlines,
    measured_in,
    reward_row,
    simulated_by_ratio,
)
from benchmarks.async_simulation import simulate, union_seconds
from benchmarks.slow_tools import LONGEST_S, SHORTEST_S, SlowSession, SlowTools, pareto_seconds
from engine.spec.message import AssistantMessage
from engine.spec.run import RunSpec
from engine.spec.schedule import Schedule
from engine.spec.trajectory import Task


def schedule(ratio: int) -> Schedule:
    return Schedule(async_ratio=ratio, prompts_per_step=1, group_size=1, minibatch_trajectories=1)


TRACE = [[[1.0]], [[3.0]]]


def test_a_synchronous_step_waits_for_its_rollout_and_the_next_one_for_its_update() -> None:
    """0.5 sampled + 1 tool + 0.5 update, then 0.5 + 3 + 0.5."""
    found = simulate(TRACE, schedule=schedule(0), turn_s=0.5, update_s=0.5)
    assert found.seconds == pytest.approx(6.0)
    assert found.sampling_idle == found.training_idle == pytest.approx(5 / 6)


def test_with_ratio_1_both_groups_play_at_once() -> None:
    """The second comes back at 3.5, when the first update is long over: 4 seconds; both turns are sampled together."""
    found = simulate(TRACE, schedule=schedule(1), turn_s=0.5, update_s=0.5)
    assert found.seconds == pytest.approx(4.0)
    assert found.sampling_idle == pytest.approx(1 - 0.5 / 4)
    assert found.training_idle == pytest.approx(1 - 1 / 4)
    assert found.idle == pytest.approx((0.875 + 0.75) / 2)


def test_what_a_ratio_would_give_if_only_tools_took_time() -> None:
    """One after the other the groups take 1 + 3 s, both at once 3."""
    alone = {ratio: [simulate(TRACE, schedule=schedule(ratio), turn_s=0.0, update_s=0.0)] for ratio in (0, 1)}
    (bound,) = bounds(alone)
    assert bound.what == "ratio 1 alone, if only tools took time"
    assert bound.value == pytest.approx(4 / 3)


def test_a_larger_ratio_never_takes_longer_on_the_same_trace() -> None:
    dice = Random(4)
    trace = [[[pareto_seconds(dice.random()) for _ in range(2)] for _ in range(3)] for _ in range(40)]
    took = [simulate(trace, schedule=schedule(ratio), turn_s=0.1, update_s=0.2).seconds for ratio in (0, 1, 2, 4)]
    assert took == sorted(took, reverse=True)
    assert took[2] < 0.8 * took[0]


def test_intervals_that_overlap_count_once_and_not_beyond_the_end() -> None:
    assert union_seconds([(3.0, 9.0), (0.0, 1.0), (0.5, 2.0)], until=4.0) == 3.0


def test_tools_sleep_by_the_law_of_pareto() -> None:
    assert pareto_seconds(1.0) == SHORTEST_S
    assert pareto_seconds(0.0) == pytest.approx(LONGEST_S)
    draws = [pareto_seconds((number + 0.5) / 100_000) for number in range(100_000)]
    for seconds in (0.1, 0.5, 2.0):
        beyond = fmean(draw > seconds for draw in draws)
        assert beyond == pytest.approx((SHORTEST_S / seconds) ** 1.5, rel=0.02)


def task(split: str) -> Task:
    return SlowTools().tasks(split)[3]


async def call(session: SlowSession) -> float:
    observation = await session.act(AssistantMessage.calling("fetch", {"page": "a"}))
    return observation.calls[0].seconds


def test_equal_seeds_meet_equal_latencies_each_try_its_own_and_an_evaluation_none() -> None:
    async def tried(seed: int, split: str) -> list[float]:
        slow = SlowTools(seed=seed)
        return await asyncio.gather(*(call(slow.session(task(split), None)) for _ in range(3)))

    began = time.monotonic()
    first, again, other = (asyncio.run(tried(seed, "train")) for seed in (0, 0, 1))
    assert time.monotonic() - began >= max(first) + max(again) + max(other)
    assert first == again != other
    assert len(set(first)) == 3
    assert min(first) >= SHORTEST_S
    assert asyncio.run(tried(0, "heldout")) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.name)
def test_every_arm_is_a_run_that_the_engine_takes(arm: Arm) -> None:
    spec = RunSpec.model_validate(tomllib.loads(arm.run_file(seed=3, steps=12)))
    assert (spec.schedule.async_ratio, bool(spec.schedule.redundant_members)) == (arm.ratio, arm.redundant)


def run(wall_s: float, reward: float) -> Measured:
    return Measured(wall_s, reward, 0.0, 0.0, 0.0, [[[1.0]]] * 8)


def test_rewards_are_equal_where_the_interval_of_their_difference_holds_0() -> None:
    arm = Arm(2, redundant=False)
    base = [run(30, reward) for reward in (0.5, 0.6, 0.7)]
    noisy = [run(10, reward) for reward in (0.6, 0.5, 0.7)]
    worse = [run(10, reward) for reward in (0.30, 0.41, 0.50)]
    assert half_width([0.1, -0.1, 0.0]) == pytest.approx(4.303 * 0.1 / 3**0.5)
    assert reward_row(arm, base, noisy).met is True
    assert reward_row(arm, base, worse).met is False


def test_the_headline_compares_inside_a_seed() -> None:
    results = {SYNCHRONOUS: [run(30, 0.5), run(60, 0.6)], Arm(2, redundant=False): [run(10, 0.5), run(15, 0.6)]}
    rows = headlines(results, simulated_by_ratio(results, turn_s=0.5, update_s=0.5))
    assert (rows[0].value, rows[0].spread, rows[0].met) == (3.5, (3.0, 4.0), True)
    assert next(row.what for row in rows if "idle" in row.what) == "idle GPUs, simulated, ratio 0"


def test_the_clock_runs_from_the_first_weights_to_the_end_of_the_last_step() -> None:
    turns = [{"tool_calls": [{"seconds": 0.5}, {"seconds": 0.25}]}, {"tool_calls": []}]
    trajectory = {"purpose": "train", "prompt": 0, "segments": [{"turns": turns}]}
    log = [
        {"kind": "phase", "phase": "start", "at": 1.0},
        {"kind": "phase", "phase": "sync-weights", "at": 5.0},
        {"kind": "trajectory", "at": 9.0, "trajectory": trajectory},
        {"kind": "metric", "step": 1, "at": 9.5, "values": {"perf/step_seconds": 4.0, "train/staleness_max": 2.0}},
        {"kind": "metric", "step": 1, "at": 12.0, "values": {"eval/success_sampled": 0.75}},
    ]
    found = measured_in(log, steps=1)
    assert (found.wall_s, found.reward, found.staleness_max, found.groups) == (4.5, 0.75, 2.0, [[[0.75, 0.0]]])
