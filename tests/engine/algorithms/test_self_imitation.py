import torch

from engine.algorithms.losses import objective_for
from engine.algorithms.objectives import PolicyTokens
from engine.algorithms.self_imitation import self_imitation_loss
from engine.spec.objective import Clipped


def _tokens() -> PolicyTokens:
    dice = torch.Generator().manual_seed(2)
    old, shift, advantages = torch.randn(3, 5, 8, generator=dice, dtype=torch.float64).unbind()
    logp = (old + 0.3 * shift).requires_grad_()
    return PolicyTokens(logp, old, advantages.abs(), torch.rand(5, 8, generator=dice) < 0.7)


def test_at_full_strength_without_clipping_it_is_the_clipped_surrogate_bit_for_bit():
    tokens = _tokens()
    plain = objective_for(Clipped(aggregation="seq-mean-token-sum-norm"), max_response_tokens=8).loss(tokens)
    keep_all = torch.ones(5, 8).bool()
    for keep in (None, keep_all):
        mine = self_imitation_loss(tokens, keep, strength=1.0, max_response_tokens=8)
        assert all(torch.equal(a, b) for a, b in zip(mine, plain, strict=True))


def test_at_strength_0_it_teaches_nothing():
    tokens = _tokens()
    self_imitation_loss(tokens, None, strength=0.0)[0].backward()
    assert torch.equal(tokens.logp_BT.grad, torch.zeros(5, 8, dtype=torch.float64))


def test_strength_scales_the_gradient():
    gradients = []
    for strength in (1.0, 0.25):
        tokens = _tokens()
        self_imitation_loss(tokens, None, strength=strength)[0].backward()
        gradients.append(tokens.logp_BT.grad)
    torch.testing.assert_close(gradients[1], gradients[0] / 4)


def test_a_dropped_token_loses_its_gradient_and_keeps_its_place_in_the_mean():
    tokens, keep = _tokens(), torch.rand(5, 8) < 0.5
    total, weight = self_imitation_loss(tokens, keep, strength=1.0, aggregation="token-mean")
    total.backward()
    assert torch.all(tokens.logp_BT.grad[~keep] == 0)
    assert weight == tokens.mask_BT.sum()


def test_what_was_good_becomes_likelier():
    tokens = _tokens()
    self_imitation_loss(tokens, None, strength=1.0)[0].backward()
    assert torch.all(tokens.logp_BT.grad <= 0)
    assert (tokens.logp_BT.grad < 0).any()
