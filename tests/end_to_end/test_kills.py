"""Whatever is killed in the middle of a run: it succeeds, every event is stored once, the curve is complete."""

from itertools import combinations

import pytest

from tests.end_to_end.stack import Stack, small_spec

pytestmark = [pytest.mark.stack, pytest.mark.slow]

PARTS = ("web", "worker", "beat", "valkey", "postgres", "ray", "driver", "rollout", "generator", "learner")
ONE_BY_ONE = ("web", "rollout", "postgres", "worker", "beat", "valkey")
IN_TURN = (("rollout", 6), ("postgres", 12), ("web", 18))
"""Who is killed when the service has noticed which step."""
STEPS = 50
"""Enough that a run is still at work when a loaded service has noticed its sixth step."""
STEPS_IN_TURN = 400
"""Enough that it is still at work when the service has begun anew twice, beside others, and noticed the last of those
steps: with 150 a run had been over for 2 s."""


def assert_complete(stack: Stack, run_id: str, *, steps: int = STEPS, after: float = 0.0) -> None:
    """``after``: when something was killed (Unix time); the run must have been alive then."""
    run = stack.until_ended(run_id)
    assert run["state"] == "succeeded", run["failure_reason"]
    events = list(stack.events(run_id))
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert run["summary"]["events_emitted"] == len(events) == run["last_seq"]
    assert events[-1]["kind"] == "finished"
    assert events[-1]["at"] > after
    for key in ("train/reward", "train/loss", "perf/step_seconds"):
        assert stack.steps_of(run_id, key) == list(range(1, steps + 1)), key
    assert stack.steps_of(run_id, "eval/success_greedy") == [0, steps]


def test_a_run_survives_the_deaths_of_a_rollout_worker_postgresql_and_web_in_turn(stack: Stack) -> None:
    run_id = stack.launch(small_spec("kill in turn", steps=STEPS_IN_TURN))
    for part, step in IN_TURN:
        killed_at = stack.kill_at_step(step, [part], run_id)
    assert_complete(stack, run_id, steps=STEPS_IN_TURN, after=killed_at)


@pytest.mark.soak  # three of them die in turn above
@pytest.mark.parametrize("part", ONE_BY_ONE)
def test_a_run_survives_the_death_of(part: str, stack: Stack) -> None:
    run_id = stack.launch(small_spec(f"kill {part}", steps=STEPS))
    killed_at = stack.kill_at_step(6, [part], run_id)
    assert_complete(stack, run_id, after=killed_at)


def test_a_killed_driver_is_followed_by_a_second_attempt_from_a_checkpoint(stack: Stack) -> None:
    run_id = stack.launch(small_spec("second attempt", steps=STEPS))
    killed_at = stack.kill_at_step(5, ["driver"], run_id)
    assert_complete(stack, run_id, after=killed_at)
    started = [event for event in stack.events(run_id) if event["kind"] == "started"]
    first, second = [(event["attempt"], event["from_step"]) for event in started]
    assert (first, second[0]) == ((1, 0), 2)
    assert second[1] in range(4, STEPS, 4)


@pytest.mark.soak
@pytest.mark.parametrize(("first", "second"), list(combinations(PARTS, 2)))
def test_a_run_survives_the_death_of_two(first: str, second: str, stack: Stack) -> None:
    run_id = stack.launch(small_spec(f"kill {first} and {second}", steps=STEPS))
    killed_at = stack.kill_at_step(6, [first, second], run_id)
    assert_complete(stack, run_id, after=killed_at)
