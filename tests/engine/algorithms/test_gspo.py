import math

import pytest
import torch

from engine.algorithms.aggregation import aggregated
from engine.algorithms.losses import objective_for
from engine.algorithms.objectives import PolicyTokens, clipped_surrogate
from engine.algorithms.ratios import token_ratios
from engine.spec.objective import Gspo


def gspo_loss(tokens: PolicyTokens, **clips: float) -> tuple[torch.Tensor, torch.Tensor]:
    return objective_for(Gspo(**clips), max_response_tokens=1).loss(tokens)


def _tokens(rows: int, length: int) -> PolicyTokens:
    dice = torch.Generator().manual_seed(1)
    old, shift, advantages = torch.randn(3, rows, length, generator=dice, dtype=torch.float64).unbind()
    logp = (old + shift * 0.2).requires_grad_()
    return PolicyTokens(logp, old, advantages[:, :1].expand(rows, length), torch.ones(rows, length).bool())


def test_gspo_by_hand():
    """Token ratios 2 and 8, so s = 4, beyond the clip for A = 1 and inside for A = -1."""
    old = torch.zeros(2, 2, dtype=torch.float64)
    logp = torch.tensor([[2.0, 8.0], [2.0, 8.0]], dtype=torch.float64).log().requires_grad_()
    advantages = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    total, weight = gspo_loss(PolicyTokens(logp, old, advantages, torch.ones(2, 2).bool()), clip_low=0.2, clip_high=0.3)
    assert (total.item(), weight.item()) == pytest.approx((-1.3 + 4, 2))
    total.backward()
    torch.testing.assert_close(logp.grad, torch.tensor([[0.0, 0.0], [2.0, 2.0]], dtype=torch.float64))


def test_with_one_token_per_sequence_it_is_ppo_on_tokens():
    tokens = _tokens(50, 1)
    ppo = clipped_surrogate(
        token_ratios(tokens.logp_BT, tokens.logp_old_BT), tokens.advantages_BT, clip_low=0.1, clip_high=0.2
    )
    expected = aggregated(ppo, tokens.mask_BT, "seq-mean-token-mean", max_response_tokens=1)
    for got, wanted in zip(gspo_loss(tokens, clip_low=0.1, clip_high=0.2), expected, strict=True):
        assert torch.equal(got, wanted)


def test_a_sequence_is_clipped_as_a_whole():
    """All its tokens lose their gradient together, also those whose own ratio is inside the clip."""
    tokens = _tokens(40, 6)
    gspo_loss(tokens, clip_low=0.05, clip_high=0.05)[0].backward()
    silent = tokens.logp_BT.grad == 0
    assert torch.equal(silent.all(1), silent.any(1))
    assert silent.any()
    assert not silent.all()
    inside = (tokens.logp_BT - tokens.logp_old_BT).abs() < math.log(1.05)
    assert (silent & inside).any()


def test_the_mean_over_sequences_weighs_a_long_one_like_a_short_one():
    old = torch.zeros(2, 4, dtype=torch.float64)
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    total, weight = gspo_loss(PolicyTokens(old.clone(), old, torch.full((2, 4), 3.0), mask))
    assert (total.item(), weight.item()) == pytest.approx((-6.0, 2))


def test_with_one_advantage_per_sequence_the_gradient_is_that_of_the_sequence_ratio():
    tokens = _tokens(30, 6)
    gspo_loss(tokens, clip_low=0.1, clip_high=0.1)[0].backward()
    logp = tokens.logp_BT.detach().clone().requires_grad_()
    ratio_B = (logp - tokens.logp_old_BT).mean(1).exp()
    clipped_surrogate(ratio_B, tokens.advantages_BT[:, 0], clip_low=0.1, clip_high=0.1).sum().backward()
    torch.testing.assert_close(tokens.logp_BT.grad, logp.grad)


def test_turns_with_advantages_of_their_own_do_not_mix():
    logp = torch.zeros(1, 2, dtype=torch.float64).requires_grad_()
    advantages = torch.tensor([[1.0, -3.0]], dtype=torch.float64)
    gspo_loss(PolicyTokens(logp, logp.detach(), advantages, torch.ones(1, 2).bool()))[0].backward()
    torch.testing.assert_close(logp.grad, -advantages / 2)
