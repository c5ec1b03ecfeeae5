import pytest
import torch

from engine.algorithms.gae import critic_loss, generalised_advantages

REWARDS = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
VALUES = torch.tensor([[0.5, 0.4, 0.2]], dtype=torch.float64)
ALL = torch.ones(1, 3, dtype=torch.bool)


def test_gae_by_hand():
    """gamma 0.5, lambda 0.5; deltas 0.5*0.4-0.5, 0.5*0.2-0.4, 1-0.2; each advantage is delta + 0.25 of the next."""
    advantages, targets = generalised_advantages(REWARDS, VALUES, ALL, gamma=0.5, lam=0.5)
    third, second, first = 0.8, -0.3 + 0.25 * 0.8, -0.3 + 0.25 * -0.1
    expected = torch.tensor([[first, second, third]], dtype=torch.float64)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(targets, expected + VALUES)


def test_lambda_1_is_the_return_minus_the_value():
    advantages, targets = generalised_advantages(REWARDS, VALUES, ALL, gamma=0.9, lam=1.0)
    returns = torch.tensor([[0.81, 0.9, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(advantages, returns - VALUES)
    torch.testing.assert_close(targets, returns)


def test_lambda_0_is_the_one_step_error():
    advantages, _ = generalised_advantages(REWARDS, VALUES, ALL, gamma=1.0, lam=0.0)
    torch.testing.assert_close(advantages, torch.tensor([[-0.1, -0.2, 0.8]], dtype=torch.float64))


def test_tool_output_between_two_turns_is_no_step():
    """Spread out by given tokens with values and rewards of their own, the sampled ones keep their credit."""
    mask = torch.tensor([[False, True, False, False, True, True, False]])
    wide_values = torch.full((1, 7), 9.0, dtype=torch.float64).masked_scatter(mask, VALUES)
    wide_rewards = torch.full((1, 7), -9.0, dtype=torch.float64).masked_scatter(mask, REWARDS)
    wide, wide_targets = generalised_advantages(wide_rewards, wide_values, mask, gamma=0.9, lam=0.7)
    dense, targets = generalised_advantages(REWARDS, VALUES, ALL, gamma=0.9, lam=0.7)
    assert torch.equal(wide[mask], dense[0])
    assert torch.equal(wide_targets[mask], targets[0])
    assert torch.equal(wide[~mask], torch.zeros(4, dtype=torch.float64))


def test_a_perfect_critic_leaves_nothing_to_learn():
    advantages, _ = generalised_advantages(REWARDS, torch.ones_like(VALUES), ALL)
    assert torch.equal(advantages, torch.zeros_like(VALUES))


@pytest.mark.parametrize(
    ("value", "loss", "slope"),
    [
        (0.2, 0.5 * 0.8**2, -0.8),  # near the old value: regression
        (0.9, 0.5 * 0.5**2, 0.0),  # already moved by more than the clip towards the target: enough
        (-0.9, 0.5 * 1.9**2, -1.9),  # moved away from the target: pulled back
    ],
)
def test_critic_loss_by_hand(value, loss, slope):
    """Old value 0, target 1, clip 0.5."""
    values = torch.tensor([[value]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    total, weight = critic_loss(values, 0 * one, one, one.bool(), clip=0.5)
    total.backward()
    assert (total.item(), weight.item(), values.grad.item()) == pytest.approx((loss, 1, slope))


def test_a_critic_clip_out_of_reach_is_bit_identical_to_none():
    """On multiples of 1/8, where the sums of floats are exact."""
    values, old, targets = torch.randint(-20, 20, (3, 4, 9)).div(8).unbind()
    mask = torch.rand(4, 9) < 0.5
    without, _ = critic_loss(values, old, targets, mask, clip=None)
    assert torch.equal(critic_loss(values, old, targets, mask, clip=100.0)[0], without)
