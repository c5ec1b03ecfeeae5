from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.credit import group_relative_advantages
from engine.algorithms.filters import highest_variance_groups, informative_groups, sampling_verdict


def test_a_group_that_never_or_always_succeeds_is_not_informative():
    successes = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert informative_groups(successes).tolist() == [False, True, True, False]


def test_a_lost_rollout_is_neither_success_nor_failure():
    successes, valid = torch.tensor([[1, 1, 0], [0, 1, 0]]), torch.tensor([[True, True, False], [True, False, True]])
    assert informative_groups(successes, valid).tolist() == [False, False]


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6))
def test_informative_groups_are_those_whose_advantages_are_not_all_0(successes):
    rewards = torch.tensor(successes).float()
    teaches = (group_relative_advantages(rewards) != 0).any(1)
    assert torch.equal(informative_groups(rewards), teaches)


@pytest.mark.parametrize(
    ("informative", "rounds", "verdict"),
    [(8, 1, "enough"), (9, 3, "enough"), (7, 1, "again"), (7, 2, "again"), (7, 3, "give-up"), (0, 3, "give-up")],
)
def test_dynamic_sampling_goes_on_until_it_has_enough_or_reaches_its_bound(informative, rounds, verdict):
    assert sampling_verdict(informative, wanted=8, rounds=rounds, max_rounds=3) == verdict


def test_the_quarter_that_varies_least_is_dropped():
    rewards = torch.tensor([[0.0, 4.0], [0.0, 1.0], [0.0, 3.0], [0.0, 2.0]])
    assert highest_variance_groups(rewards).tolist() == [True, False, True, True]
    assert highest_variance_groups(rewards, keep=0.5).tolist() == [True, False, True, False]


def test_a_lost_rollout_does_not_make_a_group_vary():
    rewards = torch.tensor([[1.0, 1.0, float("nan")], [0.0, 1.0, 0.0]])
    valid = torch.tensor([[True, True, False], [True, True, True]])
    assert highest_variance_groups(rewards, valid, keep=0.5).tolist() == [False, True]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_keeping_all_drops_nothing(spreads):
    assert highest_variance_groups(torch.tensor([[0.0, spread] for spread in spreads]), keep=1.0).all()


@given(st.lists(st.floats(0, 5), min_size=1, max_size=20), st.integers(1, 10))
def test_what_is_kept_varies_at_least_as_much_as_what_is_dropped(spreads, tenths):
    kept = highest_variance_groups(torch.tensor([[0.0, spread] for spread in spreads]), keep=tenths / 10)
    assert kept.sum() == len(spreads) - (10 - tenths) * len(spreads) // 10
    of_kept = [spread for spread, keep in zip(spreads, kept, strict=True) if keep]
    of_dropped = [spread for spread, keep in zip(spreads, kept, strict=True) if not keep]
    assert not of_dropped or min(of_kept) >= max(of_dropped) - 1e-6


def test_of_equal_groups_the_earlier_stay():
    """Many of them, because a sort of few is stable by accident."""
    assert highest_variance_groups(torch.ones(400, 3)).tolist() == [True] * 300 + [False] * 100


def test_groups_are_equal_whatever_their_reward_and_its_order():
    """In floating point seven rewards of 0.7 vary, and the same rewards vary differently in another order."""
    same = torch.tensor([[0.0] * 7, [0.7] * 7, [0.1] * 7, [0.3] * 7], dtype=torch.float64)
    assert highest_variance_groups(same, keep=0.5).tolist() == [True, True, False, False]
    rewards = [0.1, 0.7, 0.3, 0.9, 0.2]
    for order in permutations(rewards):
        assert highest_variance_groups(torch.tensor([rewards, order]), keep=0.5).tolist() == [True, False]
