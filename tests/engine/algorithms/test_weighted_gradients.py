import math

import pytest
import torch

from engine.algorithms.objectives import clipped_surrogate
from engine.algorithms.ratios import token_ratios
from engine.algorithms.weighted_gradients import cispo_losses, reinforce_losses, tis_losses, topr_losses


def _slope(losses, ratio: float, advantage: float, **switches) -> float:
    """d loss / d log pi where pi is ``ratio`` times pi_old."""
    logp = torch.tensor(math.log(ratio), dtype=torch.float64, requires_grad=True)
    ratios = token_ratios(logp, torch.zeros((), dtype=torch.float64))
    losses(logp, torch.tensor(advantage, dtype=torch.float64), ratios, **switches).backward()
    return logp.grad.item()


@pytest.mark.parametrize(
    ("losses", "ratio", "advantage", "slope"),
    [
        (tis_losses, 0.5, 2.0, -1.0),
        (tis_losses, 3.0, 2.0, -2.0),  # truncated at 1, not cut off
        (tis_losses, 0.5, -2.0, 1.0),
        (tis_losses, 3.0, -2.0, 2.0),
        (topr_losses, 0.5, 2.0, -2.0),  # a positive is learned whole, however unlikely by now
        (topr_losses, 3.0, 2.0, -2.0),
        (topr_losses, 0.5, -2.0, 1.0),  # the rest as in TIS
        (topr_losses, 3.0, -2.0, 2.0),
        (cispo_losses, 0.5, 2.0, -1.0),
        (cispo_losses, 3.0, 2.0, -2.56),  # clipped at 1.28, and still learned
        (cispo_losses, 3.0, -2.0, 2.56),
    ],
)
def test_slopes_by_hand(losses, ratio, advantage, slope):
    assert _slope(losses, ratio, advantage) == pytest.approx(slope)


def test_a_lower_clip_of_cispo_by_hand():
    assert _slope(cispo_losses, 0.5, 2.0, clip_low=0.2) == pytest.approx(-1.6)


def test_another_bound_of_tis_by_hand():
    assert _slope(tis_losses, 3.0, 2.0, bound=2.0) == pytest.approx(-4.0)


def test_topr_is_tis_on_what_is_not_positive_and_reinforce_on_what_is():
    logp, advantages = -torch.rand(100), torch.randn(100)
    ratios = torch.rand(100) * 2
    positive = advantages > 0
    topr = topr_losses(logp, advantages, ratios)
    assert torch.equal(topr[~positive], tis_losses(logp, advantages, ratios)[~positive])
    assert torch.equal(topr[positive], reinforce_losses(logp, advantages)[positive])


def test_inside_the_clip_cispo_has_the_gradient_of_ppo_and_outside_it_does_not_vanish():
    advantage, (low, high) = 1.0, (0.2, 0.28)

    def ppo(logp, advantages, ratios):
        return clipped_surrogate(ratios, advantages, clip_low=low, clip_high=high)

    for ratio in (0.85, 1.0, 1.25):
        assert _slope(cispo_losses, ratio, advantage) == pytest.approx(_slope(ppo, ratio, advantage))
    assert _slope(ppo, 2.0, advantage) == 0 > _slope(cispo_losses, 2.0, advantage)


@pytest.mark.parametrize("losses", [tis_losses, topr_losses, cispo_losses])
def test_a_bound_out_of_reach_is_plain_importance_sampling(losses):
    switch = {"clip_high": 1e9} if losses is cispo_losses else {"bound": 1e9}
    assert _slope(losses, 7.0, -2.0, **switch) == pytest.approx(14.0)
