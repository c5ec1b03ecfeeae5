import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.credit import (
    advantages_of,
    group_relative_advantages,
    leave_one_out_advantages,
    whitened_advantages,
)
from engine.spec.credit import DrGrpo, Grpo, Rloo

KINDS = [Grpo(), DrGrpo(), Rloo()]
every_kind = pytest.mark.parametrize("credit", KINDS, ids=lambda credit: credit.kind)
rewards_of_a_group = st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=8)


def _group(*rewards: float) -> torch.Tensor:
    return torch.tensor([rewards])


def test_grpo_by_hand():
    """Mean 0.25, population std sqrt(3) / 4."""
    expected = torch.tensor([[math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3), -1 / math.sqrt(3)]])
    torch.testing.assert_close(advantages_of(Grpo(), _group(1, 0, 0, 0)), expected, rtol=1e-5, atol=0)


def test_dr_grpo_by_hand():
    torch.testing.assert_close(advantages_of(DrGrpo(), _group(1, 0, 0, 0)), _group(0.75, -0.25, -0.25, -0.25))


def test_rloo_by_hand():
    """The others of the 1 have mean 0; the others of a 0 have mean 1/3."""
    torch.testing.assert_close(advantages_of(Rloo(), _group(1, 0, 0, 0)), _group(1, -1 / 3, -1 / 3, -1 / 3))


@every_kind
@pytest.mark.parametrize("rewards", [[1.0], [0.0, 0.0], [0.7] * 7, [1 / 3] * 8, [-1e6] * 3])
def test_equal_rewards_teach_nothing(credit, rewards):
    assert torch.equal(advantages_of(credit, _group(*rewards)), torch.zeros(1, len(rewards)))


@every_kind
def test_groups_do_not_see_each_other(credit):
    together = advantages_of(credit, torch.tensor([[1.0, 0.0, 0.0], [5.0, 9.0, 7.0]]))
    assert torch.equal(together[0], advantages_of(credit, _group(1, 0, 0))[0])
    assert torch.equal(together[1], advantages_of(credit, _group(5, 9, 7))[0])


@every_kind
@given(rewards=rewards_of_a_group, lost=st.data())
def test_lost_members_count_as_if_they_had_never_been(credit, rewards, lost):
    places = lost.draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards)))
    kept = [reward for reward, gone in zip(rewards, places, strict=True) if not gone]
    garbage = torch.tensor([[float("nan") if gone else r for r, gone in zip(rewards, places, strict=True)]])
    valid = ~torch.tensor([places])
    ragged = advantages_of(credit, garbage, valid)
    assert torch.equal(ragged[~valid], torch.zeros(sum(places)))
    if kept:
        torch.testing.assert_close(ragged[valid], advantages_of(credit, _group(*kept))[0], rtol=1e-4, atol=1e-5)


@every_kind
@given(rewards=rewards_of_a_group)
def test_advantages_of_a_group_sum_to_zero(credit, rewards):
    advantages = advantages_of(credit, torch.tensor([rewards], dtype=torch.float64))
    assert advantages.sum().item() == pytest.approx(0, abs=1e-8 * max(1.0, advantages.abs().max().item()))


@every_kind
@given(rewards=rewards_of_a_group, shift=st.floats(-10, 10))
def test_a_constant_bonus_for_all_changes_nothing(credit, rewards, shift):
    rewards_PG = (torch.tensor([rewards], dtype=torch.float64) * 100).round() / 100
    shifted = advantages_of(credit, rewards_PG + round(shift, 2))
    torch.testing.assert_close(shifted, advantages_of(credit, rewards_PG), rtol=1e-4, atol=1e-7)


@given(rewards=st.lists(st.integers(-5, 5), min_size=2, max_size=8), factor=st.integers(1, 100))
def test_grpo_does_not_depend_on_the_unit_of_rewards(rewards, factor):
    rewards_PG = torch.tensor([rewards], dtype=torch.float64)
    scaled = group_relative_advantages(rewards_PG * factor)
    torch.testing.assert_close(scaled, group_relative_advantages(rewards_PG), rtol=1e-4, atol=0)


@given(rewards=rewards_of_a_group)
def test_rloo_is_dr_grpo_times_n_over_n_minus_1(rewards):
    rewards_PG, n = torch.tensor([rewards], dtype=torch.float64), len(rewards)
    dr_grpo = group_relative_advantages(rewards_PG, scale_by_std=False)
    torch.testing.assert_close(leave_one_out_advantages(rewards_PG), dr_grpo * n / (n - 1))


@every_kind
@given(rewards=rewards_of_a_group)
def test_the_best_is_never_pushed_down_nor_the_worst_up(credit, rewards):
    advantages = advantages_of(credit, _group(*rewards))[0]
    assert advantages[rewards.index(max(rewards))] >= 0 >= advantages[rewards.index(min(rewards))]


def test_the_unbiased_std_divides_by_one_member_less():
    """The values 1, 0, 0, 0 have the std sqrt(0.75 / 3) = 0.5, so that (1 - 0.25) / 0.5 = 1.5."""
    advantages = group_relative_advantages(_group(1, 0, 0, 0), unbiased_std=True)
    torch.testing.assert_close(advantages, _group(1.5, -0.5, -0.5, -0.5), rtol=1e-5, atol=0)


BATCH = torch.tensor([[1.0, 0.0], [3.0, 0.0]], dtype=torch.float64)


def test_reinforce_pp_by_hand():
    """Mean 1, variance (0 + 1 + 4 + 1) / 4 = 1.5 over the whole batch."""
    expected = torch.tensor([[0.0, -1.0], [2.0, -1.0]], dtype=torch.float64) / math.sqrt(1.5)
    torch.testing.assert_close(whitened_advantages(BATCH), expected, rtol=1e-5, atol=1e-9)


def test_reinforce_pp_with_group_baseline_by_hand():
    """Group means leave +-0.5 and +-1.5; their variance is 1.25."""
    expected = torch.tensor([[0.5, -0.5], [1.5, -1.5]], dtype=torch.float64) / math.sqrt(1.25)
    torch.testing.assert_close(whitened_advantages(BATCH, group_baseline=True), expected, rtol=1e-5, atol=0)


def test_reinforce_pp_weighs_tokens_where_they_are_given():
    """Lengths 3 and 1: mean (3 * 2 + 1 * 0) / 4 = 1.5, variance (3 * 0.25 + 2.25) / 4 = 0.75."""
    weighted = whitened_advantages(_group(2, 0), weights_PG=_group(3, 1))
    torch.testing.assert_close(weighted, _group(0.5, -1.5) / math.sqrt(0.75), rtol=1e-5, atol=0)
    unbiased = whitened_advantages(_group(2, 0), weights_PG=_group(3, 1), unbiased_std=True)
    torch.testing.assert_close(unbiased, _group(0.5, -1.5), rtol=1e-5, atol=0)


@given(rewards=rewards_of_a_group)
@pytest.mark.parametrize("group_baseline", [False, True])
def test_reinforce_pp_of_a_single_group_is_grpo(rewards, group_baseline):
    rewards_PG = (torch.tensor([rewards], dtype=torch.float64) * 100).round() / 100
    whitened = whitened_advantages(rewards_PG, group_baseline=group_baseline)
    torch.testing.assert_close(whitened, group_relative_advantages(rewards_PG), rtol=1e-4, atol=1e-7)


def test_reinforce_pp_learns_from_a_group_of_equal_rewards_only_without_a_group_baseline():
    batch = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    assert torch.all(whitened_advantages(batch)[0] > 0)
    assert torch.equal(whitened_advantages(batch, group_baseline=True)[0], torch.zeros(2))
    weights = torch.tensor([[5.0, 1.0], [1.0, 2.0]])
    assert torch.equal(whitened_advantages(batch, group_baseline=True, weights_PG=weights)[0], torch.zeros(2))
    assert torch.equal(whitened_advantages(torch.full((2, 3), 0.7)), torch.zeros(2, 3))


@pytest.mark.parametrize("group_baseline", [False, True])
def test_lost_rollouts_do_not_move_the_whitening(group_baseline):
    ragged = torch.tensor([[1.0, 0.0, float("nan")], [3.0, 0.0, float("inf")]], dtype=torch.float64)
    valid = torch.tensor([[True, True, False]] * 2)
    advantages = whitened_advantages(ragged, valid, group_baseline=group_baseline)
    assert torch.equal(advantages[:, :2], whitened_advantages(BATCH, group_baseline=group_baseline))
    assert torch.equal(advantages[:, 2], torch.zeros(2, dtype=torch.float64))
