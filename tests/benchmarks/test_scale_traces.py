"""What a run did, played again by the simulation: taken from its log by hand, and from the trace that is recorded."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from benchmarks.multiplexing_runs import LENDING, run_file
from benchmarks.scale import TRACED_TIMES, beside_the_run, traced
from benchmarks.scale_simulation import Plan, Simulation
from benchmarks.scale_traces import Recorded, Rollout, Setting, machine_of, read_trace, trace_in
from engine.launch.preflight import spec_from_file

SMALL = Setting(generators=2, trainer=1, kv_slots=8, async_ratio=0, prompts_per_step=1, group_size=2, hold_s=0.5)


def turn(read: int, sampled: int, *, called_at: float | None, took_s: float = 0.0) -> dict[str, Any]:
    calls = [] if called_at is None else [{"began_at": called_at, "seconds": took_s}]
    return {"context_ids": [0] * read, "token_ids": [0] * sampled, "tool_calls": calls}


def log_of(steps: int) -> list[dict[str, Any]]:
    """Each step has a group of two: one calls its tool twice, one does not."""
    events: list[dict[str, Any]] = []
    for step in range(steps):
        calls = [turn(10, 4, called_at=1.0, took_s=2.0), turn(1, 4, called_at=3.5, took_s=0.25)]
        for member, turns in enumerate((calls, [turn(10, 6, called_at=None)])):
            rollout = {"purpose": "train", "prompt": step, "member": member, "segments": [{"turns": turns}]}
            events.append({"kind": "trajectory", "trajectory": rollout})
        spans = [{"lane": "training", "seconds": 0.7}, {"lane": "weights", "seconds": 0.1}]
        events.append({"kind": "lanes", "spans": spans})
        values = {"perf/step_seconds": 6.0, "multiplexing/moves": 2, "train/staleness_max": 0}
        events.append({"kind": "metric", "values": values | {"multiplexing/training_seconds": 1.5}})
    return events


def test_a_trace_has_what_lies_between_two_calls_and_what_its_lanes_say() -> None:
    trace = trace_in(log_of(4), SMALL)
    assert trace.groups == [[Rollout([10, 1], [4, 4], [2.0, 0.25]), Rollout([10], [6], [0.0])]] * 4
    assert trace.token_s == pytest.approx(0.5 / 5), "half a second for a token that was read and four that were sampled"
    assert trace.train_token_s == pytest.approx(0.7 / (19 + 16))
    assert trace.weights_s == 0.1
    assert (trace.outcome.steps_per_hour, trace.outcome.moves, trace.outcome.training_share) == (600, 2, 0.25)


def test_a_log_that_says_too_little_is_refused() -> None:
    with pytest.raises(ValueError, match="too few to compare"):
        trace_in(log_of(2), SMALL)
    silent = [event for event in log_of(4) if event["kind"] != "trajectory" or event["trajectory"]["member"]]
    with pytest.raises(ValueError, match="nothing says how long a token takes"):
        trace_in(silent, SMALL)


def test_recorded_rollouts_come_in_groups_and_from_the_beginning_again() -> None:
    trace = trace_in(log_of(3), SMALL)
    episodes = Recorded(trace)
    drawn = [episodes.drawn(Random(0)) for _ in range(8)]
    assert [episode.tokens for episode in drawn] == [[14.0, 5.0], [16.0]] * 4
    assert [episode.waits_s for episode in drawn[:2]] == [[2.0, 0.25], [0.0]]
    assert drawn[0].group is drawn[1].group is not drawn[2].group
    assert episodes.trained_tokens(drawn[0]) == 19


def test_a_group_is_ready_when_its_last_member_is() -> None:
    """A synchronous step of two on two devices: the slower one, training, and the weights."""
    trace = trace_in(log_of(3), SMALL)
    machine, plan = machine_of(trace, devices=2), Plan("colocated", 0, 2)
    step_s = 19 * trace.token_s + 2.25 + 35 * trace.train_token_s / 2 + trace.weights_s
    assert 3600 / Simulation(machine, Recorded(trace), plan).run(2, warm_up=1).steps_per_hour == pytest.approx(step_s)

    outcome = Simulation(machine, Recorded(trace), Plan("apart", 1, 2, 1)).run(6, warm_up=2)
    assert outcome.staleness_max <= 1
    assert outcome.in_flight_max <= 4


def test_members_that_end_at_one_moment_are_ready_once() -> None:
    alike = [Rollout([10], [4], [0.0])] * 2
    trace = replace(trace_in(log_of(3), SMALL), groups=[alike])
    outcome = Simulation(machine_of(trace, devices=2), Recorded(trace), Plan("colocated", 0, 2)).run(3, warm_up=1)
    step_s = 14 * trace.token_s + 28 * trace.train_token_s / 2 + trace.weights_s
    assert 3600 / outcome.steps_per_hour == pytest.approx(step_s)
    assert outcome.staleness_max == 0


def test_the_recorded_trace_is_played_in_every_layout_and_stands_beside_its_run() -> None:
    trace = read_trace()
    assert trace.setting == LENDING
    cases = list(traced(trace, seed=0, steps=4))
    assert [case.outcome.plan.layout for case in cases] == ["colocated", "apart", "multiplexed"] * len(TRACED_TIMES)
    for case in cases:
        assert case.outcome.staleness_max <= case.outcome.plan.async_ratio
    assert [row.what for row in beside_the_run(trace, cases)][0] == "recorded run: steps per hour"


@pytest.mark.parametrize("lends", [True, False])
def test_what_is_recorded_is_a_run_that_can_be_made(tmp_path: Any, lends: bool) -> None:
    file = tmp_path / "run.toml"
    file.write_text(run_file(LENDING, seed=1, lends=lends))
    spec = spec_from_file(file)
    assert (spec.resources.generators, spec.schedule.multiplexing) == (2, lends)
