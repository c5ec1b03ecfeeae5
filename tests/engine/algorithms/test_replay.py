import json
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.replay import BaselineBuffer, ReplayBuffer, Replayed, recalibrated


def _entry(name: str, advantage: float = 1.0, *, reward: float = 1.0, step: int = 0) -> Replayed[str]:
    return Replayed(name, reward, advantage, step)


def _names(entries: list[Replayed[str]]) -> list[str]:
    return [entry.payload for entry in entries]


@given(st.lists(st.floats(-1, 1), max_size=30), st.integers(1, 10))
def test_the_baseline_is_the_median_of_the_latest_groups(means, capacity):
    buffer = BaselineBuffer(capacity)
    for mean in means:
        buffer.push([mean])
    assert buffer.median() == (median(means[-capacity:]) if means else None)
    assert len(buffer) == min(capacity, len(means))


def test_a_baseline_buffer_of_size_0_knows_nothing():
    buffer = BaselineBuffer(0)
    buffer.push([1.0, 2.0])
    assert buffer.median() is None


def test_only_good_trajectories_are_kept():
    buffer = ReplayBuffer[str](2)
    buffer.push([_entry("good", 0.5), _entry("fair", 0.0), _entry("bad", -0.5)], step=0)
    assert (len(buffer), buffer.full) == (1, False)
    assert _names(buffer.take()) == ["good"]


def test_the_step_that_fills_the_buffer_may_overfill_it_and_taking_empties_it():
    buffer = ReplayBuffer[str](2)
    buffer.push([_entry("a")], step=0)
    buffer.push([_entry("b"), _entry("c")], step=1)
    assert buffer.full
    assert _names(buffer.take()) == ["a", "b", "c"]
    assert (len(buffer), buffer.full) == (0, False)


@pytest.mark.parametrize(("now", "left"), [(10, ["old", "new"]), (11, ["new"]), (14, [])])
def test_entries_older_than_10_steps_leave(now, left):
    buffer = ReplayBuffer[str](9)
    buffer.push([_entry("old", step=0), _entry("new", step=3)], step=3)
    buffer.push([], step=now)
    assert _names(buffer.take()) == left


def test_a_replay_buffer_of_size_0_is_off():
    buffer = ReplayBuffer[str](0)
    buffer.push([_entry("a")], step=0)
    assert (len(buffer), buffer.full) == (0, False)


def test_recalibration_by_hand():
    """Baseline 0.5: only what was good then and would still be good now is imitated."""
    entries = [_entry("both", 0.1, reward=0.9), _entry("outdated", 2.0, reward=0.5), _entry("worse", -0.1, reward=0.9)]
    assert [(e.payload, a) for e, a in recalibrated(entries, 0.5)] == [("both", pytest.approx(0.4))]


def test_without_a_baseline_advantages_stay_as_they_were():
    entries = [_entry("a", 0.3, reward=-1.0), _entry("b", -0.3, reward=1.0)]
    assert [(e.payload, a) for e, a in recalibrated(entries, None)] == [("a", 0.3)]


def test_a_rising_baseline_only_ever_removes_entries():
    entries = [_entry(str(i), 1.0, reward=i / 10) for i in range(10)]
    kept = [{e.payload for e, _ in recalibrated(entries, tenth / 10)} for tenth in range(11)]
    assert all(later <= earlier for earlier, later in zip(kept, kept[1:], strict=False))
    assert not kept[-1]


def test_saved_and_loaded_both_buffers_go_on_as_if_nothing_had_happened():
    """The state passes through JSON where the payload does."""
    baselines, replay = BaselineBuffer(3), ReplayBuffer[str](3)
    baselines.push([0.1, 0.2, 0.4])
    replay.push([_entry("a", step=1), _entry("b", step=2)], step=2)
    saved = json.loads(json.dumps([baselines.state(), replay.state()]))
    baselines_again, replay_again = BaselineBuffer(3), ReplayBuffer[str](3)
    baselines_again.load(saved[0])
    replay_again.load(saved[1])
    for one, other in ((baselines, replay), (baselines_again, replay_again)):
        one.push([0.8])
        other.push([_entry("c", step=12)], step=12)
    assert baselines_again.state() == baselines.state() == [0.2, 0.4, 0.8]
    assert replay_again.take() == replay.take() == [_entry("b", step=2), _entry("c", step=12)]


def test_a_saved_state_is_not_moved_by_what_comes_after():
    replay = ReplayBuffer[str](3)
    replay.push([_entry("a")], step=0)
    saved = replay.state()
    replay.take()
    assert [entry["payload"] for entry in saved] == ["a"]
