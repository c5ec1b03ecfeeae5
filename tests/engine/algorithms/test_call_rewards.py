import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.call_rewards import ENOUGH_TOOL_CALLS, call_rewards

CALLS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)


def test_call_rewards_by_hand() -> None:
    """Three calls worked and earned 0.3; two failed and cost 1."""
    earned = call_rewards([1, 0, 2], [1, 1, 0], for_calls=0.3, for_errors=-1.0)
    assert earned == pytest.approx([0.1 - 0.5, -0.5, 0.2])


def test_calls_beyond_the_tenth_earn_nothing() -> None:
    """min(1, 0.1 n): eight of the first turn, two of the second, none of the third."""
    assert call_rewards([8, 5, 4], [0, 0, 0], for_calls=1.0, for_errors=0.0) == pytest.approx([0.8, 0.2, 0.0])


@given(CALLS, st.floats(0, 10), st.floats(-10, 0))
def test_what_turns_earn_adds_up_to_what_all_of_them_earned(
    calls: list[tuple[int, int]], for_calls: float, for_errors: float
) -> None:
    worked_K, failed_K = [worked for worked, _ in calls], [failed for _, failed in calls]
    due = (for_calls if any(worked_K) else 0.0) + (for_errors if any(failed_K) else 0.0)
    earned = call_rewards(worked_K, failed_K, for_calls=for_calls, for_errors=for_errors)
    assert sum(earned) == pytest.approx(due)


def test_without_a_call_nothing_is_earned_whatever_was_paid() -> None:
    assert call_rewards([0, 0], [0, 0], for_calls=1.0, for_errors=-1.0) == [0.0, 0.0]
    assert call_rewards([], [], for_calls=1.0, for_errors=-1.0) == []


def test_the_number_of_paid_calls_is_that_of_eq_16() -> None:
    assert 0.1 * ENOUGH_TOOL_CALLS == 1
