from itertools import permutations

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.credit import group_relative_advantages
from engine.algorithms.filters import highest_variance_groups, is_informative


def test_a_group_that_never_or_always_succeeds_is_not_informative() -> None:
    assert [is_informative(successes, 3) for successes in range(4)] == [False, True, True, False]


@given(st.lists(st.booleans(), min_size=2, max_size=6))
def test_informative_groups_are_those_whose_advantages_are_not_all_0(successes: list[bool]) -> None:
    teaches = bool((group_relative_advantages(torch.tensor([successes]).float()) != 0).any())
    assert is_informative(sum(successes), len(successes)) == teaches


def test_the_quarter_that_varies_least_is_dropped() -> None:
    rewards = [[0.0, 4.0], [0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]
    assert highest_variance_groups(rewards) == [True, False, True, True]
    assert highest_variance_groups(rewards, keep=0.5) == [True, False, True, False]


def test_groups_may_have_lost_rollouts() -> None:
    assert highest_variance_groups([[1.0, 1.0], [0.0, 1.0, 0.0]], keep=0.5) == [False, True]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_keeping_all_drops_nothing(spreads: list[float]) -> None:
    assert all(highest_variance_groups([[0.0, spread] for spread in spreads], keep=1.0))


@given(st.lists(st.floats(0, 5), min_size=1, max_size=20), st.integers(1, 10))
def test_what_is_kept_varies_at_least_as_much_as_what_is_dropped(spreads: list[float], tenths: int) -> None:
    kept = highest_variance_groups([[0.0, spread] for spread in spreads], keep=tenths / 10)
    assert sum(kept) == len(spreads) - (10 - tenths) * len(spreads) // 10
    of_kept = [spread for spread, keep in zip(spreads, kept, strict=True) if keep]
    of_dropped = [spread for spread, keep in zip(spreads, kept, strict=True) if not keep]
    assert not of_dropped or min(of_kept) >= max(of_dropped) - 1e-6


def test_of_equal_groups_the_earlier_stay() -> None:
    """Many of them, because a sort of few is stable by accident."""
    assert highest_variance_groups([[1.0] * 3] * 400) == [True] * 300 + [False] * 100


def test_groups_are_equal_whatever_their_reward_and_its_order() -> None:
    """In floating point seven rewards of 0.7 vary, and the same rewards vary differently in another order."""
    same = [[0.0] * 7, [0.7] * 7, [0.1] * 7, [0.3] * 7]
    assert highest_variance_groups(same, keep=0.5) == [True, True, False, False]
    rewards = [0.1, 0.7, 0.3, 0.9, 0.2]
    for order in permutations(rewards):
        assert highest_variance_groups([rewards, order], keep=0.5) == [True, False]
