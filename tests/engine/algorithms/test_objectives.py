import math

import pytest
import torch

from engine.algorithms.losses import objective_for
from engine.algorithms.objectives import PolicyTokens, clipped_surrogate
from engine.spec.objective import Clipped

LOW, HIGH = 0.2, 0.28


def _loss_and_slope(ratio: float, advantage: float, **switches) -> tuple[float, float]:
    r = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    loss = clipped_surrogate(r, torch.tensor(advantage), clip_low=LOW, clip_high=HIGH, **switches)
    loss.backward()
    return loss.item(), r.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),  # at the old policy it is the policy gradient
        (1.0, -2.0, 2.0, 2.0),
        (1.5, 1.0, -1.28, 0.0),  # good and already likelier: enough
        (0.5, 1.0, -0.5, -1.0),  # good but less likely: pulled back, unclipped
        (0.5, -1.0, 0.8, 0.0),  # bad and already less likely: enough
        (1.5, -1.0, 1.5, 1.0),  # bad but likelier: pushed down, unclipped
    ],
)
def test_clipped_surrogate_by_hand(ratio, advantage, loss, slope):
    assert _loss_and_slope(ratio, advantage) == pytest.approx((loss, slope))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (50.0, -1.0, 3.0, 0.0),  # bounded by c
        (2.5, -1.0, 2.5, 1.0),  # below c nothing changes
        (50.0, 1.0, -1.28, 0.0),  # positive advantages are not its business
    ],
)
def test_dual_clip_bounds_negative_advantages_only(ratio, advantage, loss, slope):
    assert _loss_and_slope(ratio, advantage, dual_clip=3.0) == pytest.approx((loss, slope))


def test_a_dual_clip_out_of_reach_is_bit_identical_to_none():
    ratios, advantages = torch.rand(1000) * 3, torch.randn(1000)
    without = clipped_surrogate(ratios, advantages, clip_low=LOW, clip_high=HIGH)
    assert torch.equal(clipped_surrogate(ratios, advantages, clip_low=LOW, clip_high=HIGH, dual_clip=10.0), without)


def test_dapo_with_equal_clips_is_ppo():
    """PPO's own formula, min(r A, clip(r, 1 - e, 1 + e) A)."""
    ratios, advantages = torch.rand(1000) * 3, torch.randn(1000)
    ppo = -torch.min(ratios * advantages, torch.clip(ratios, 0.8, 1.2) * advantages)
    assert torch.equal(clipped_surrogate(ratios, advantages, clip_low=0.2, clip_high=0.2), ppo)


def _tokens(rows: int = 6, length: int = 9, seed: int = 0) -> PolicyTokens:
    dice = torch.Generator().manual_seed(seed)

    def noise() -> torch.Tensor:
        return torch.randn(rows, length, generator=dice, dtype=torch.float64)

    mask = torch.rand(rows, length, generator=dice) < 0.6
    old = -noise().abs()
    return PolicyTokens((old + noise() * 0.3).requires_grad_(), old, noise(), mask)


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
)
def test_on_policy_the_gradient_is_that_of_reinforce(aggregation):
    """At ratio 1 each token's gradient is -A / weight, times what the aggregation gives its sequence."""
    tokens = _tokens()
    tokens = PolicyTokens(
        tokens.logp_old_BT.clone().requires_grad_(), tokens.logp_old_BT, tokens.advantages_BT, tokens.mask_BT
    )
    total, weight = objective_for(Clipped(aggregation=aggregation), max_response_tokens=9).loss(tokens)
    (total / weight).backward()
    counts = tokens.mask_BT.sum(1, keepdim=True)
    share = {
        "token-mean": 1 / counts.sum(),
        "seq-mean-token-mean": 1 / (len(counts) * counts),
        "seq-mean-token-sum": torch.tensor(1 / len(counts)),
        "seq-mean-token-sum-norm": torch.tensor(1 / (9 * len(counts))),
    }[aggregation]
    expected = torch.where(tokens.mask_BT, -tokens.advantages_BT * share, 0.0)
    torch.testing.assert_close(tokens.logp_BT.grad, expected, rtol=1e-5, atol=1e-9)


def test_descending_makes_good_tokens_likelier_and_bad_ones_less():
    tokens = _tokens()
    objective_for(Clipped(), max_response_tokens=9).loss(tokens)[0].backward()
    push = -tokens.logp_BT.grad
    assert torch.all(push * tokens.advantages_BT >= 0)
    assert torch.equal(push == 0, ~tokens.mask_BT | objective_for(Clipped(), max_response_tokens=9).clipped_BT(tokens))


def test_clipped_tokens_are_exactly_those_without_gradient_also_with_the_dual_clip():
    spec = Clipped(dual_clip=1.5)
    tokens = _tokens(rows=60)
    objective = objective_for(spec, max_response_tokens=9)
    objective.loss(tokens)[0].backward()
    cut = objective.clipped_BT(tokens)
    beyond_dual = (tokens.advantages_BT < 0) & ((tokens.logp_BT - tokens.logp_old_BT) > math.log(1.5)) & tokens.mask_BT
    assert beyond_dual.any()
    assert torch.equal((tokens.logp_BT.grad == 0) & tokens.mask_BT, cut)


def test_a_log_ratio_of_thousands_stays_finite():
    logp = torch.tensor([[0.0, -9000.0]], requires_grad=True)
    tokens = PolicyTokens(
        logp, torch.tensor([[-9000.0, 0.0]]), torch.tensor([[-1.0, 1.0]]), torch.tensor([[True, True]])
    )
    total, _ = objective_for(Clipped(), max_response_tokens=2).loss(tokens)
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(logp.grad).all()
