import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.covariance import (
    CovarianceBounds,
    covariance_bounds,
    covariance_keep,
    highest_covariances,
    kl_cov_losses,
    token_covariances,
)

EVERYTHING = CovarianceBounds(-1e9, 1e9)


def _dice(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_covariances_by_hand():
    """Means -2 and 0 over the three masked tokens."""
    covariances = token_covariances(
        _row(-1, -2, 50, -3), _row(2, -1, 50, -1), torch.tensor([[True, True, False, True]])
    )
    torch.testing.assert_close(covariances, _row(2, 0, 0, 1))


def test_their_mean_is_the_covariance():
    logp, advantages = torch.randn(2, 5, 9, dtype=torch.float64, generator=_dice()).unbind()
    mask = torch.rand(5, 9, generator=_dice()) < 0.5
    pair = torch.stack((logp[mask], advantages[mask]))
    expected = torch.cov(pair, correction=0)[0, 1]
    torch.testing.assert_close(token_covariances(logp, advantages, mask).sum() / mask.sum(), expected)


def test_equal_advantages_have_no_covariance():
    assert torch.equal(token_covariances(_row(-1, -2), _row(0.5, 0.5), torch.ones(1, 2).bool()), _row(0, 0))


def test_auto_bounds_by_hand():
    """Among 10 covariances the highest 30 % are 10, 9, 8 with mean 9; the highest 10 % is 10."""
    bounds = covariance_bounds(
        _row(*range(1, 11), 99), torch.tensor([[True] * 10 + [False]]), low_share=0.3, high_share=0.1
    )
    assert (bounds.low, bounds.high) == (9, 10)


def test_auto_bounds_need_a_token_and_use_at_least_one():
    assert covariance_bounds(_row(1, 2), torch.ones(1, 2).bool()) == CovarianceBounds(2, 2)
    with pytest.raises(ValueError, match="token"):
        covariance_bounds(_row(1), torch.zeros(1, 1).bool())


def test_only_tokens_strictly_between_the_bounds_are_dropped():
    covariances, mask = _row(1, 2, 3, 4, 5, 3), torch.tensor([[True] * 5 + [False]])
    keep = covariance_keep(covariances, mask, CovarianceBounds(1, 5), _dice(), clip_share=1.0)
    assert keep.tolist() == [[True, False, False, False, True, True]]


@given(st.integers(1, 60), st.floats(0, 1), st.integers(0, 99))
def test_the_budget_is_a_share_of_all_tokens(tokens, share, seed):
    mask = torch.ones(1, tokens).bool()
    keep = covariance_keep(torch.rand(1, tokens), mask, EVERYTHING, _dice(seed), clip_share=share)
    assert (~keep).sum() == int(share * tokens)


def test_the_generator_decides_which_and_padding_does_not():
    covariances, mask = torch.rand(4, 30, generator=_dice()), torch.rand(4, 30, generator=_dice()) < 0.6
    keep = covariance_keep(covariances, mask, EVERYTHING, _dice(7), clip_share=0.2)
    assert torch.equal(covariance_keep(covariances, mask, EVERYTHING, _dice(7), clip_share=0.2), keep)
    assert not torch.equal(covariance_keep(covariances, mask, EVERYTHING, _dice(8), clip_share=0.2), keep)
    wide = [torch.nn.functional.pad(x, (0, 9)) for x in (covariances, mask)]
    assert torch.equal(covariance_keep(*wide, EVERYTHING, _dice(7), clip_share=0.2)[:, :30], keep)


def test_every_candidate_is_dropped_equally_often():
    mask, dice = torch.ones(1, 10).bool(), _dice()
    dropped = sum(
        (~covariance_keep(torch.zeros(1, 10), mask, EVERYTHING, dice, clip_share=0.3)).float() for _ in range(2000)
    )
    # 600 expected, standard deviation sqrt(2000 * 0.3 * 0.7) = 20.5; five of them.
    assert torch.all((dropped - 600).abs() < 103)


def test_a_share_of_0_keeps_all_and_draws_nothing():
    dice = _dice()
    before = dice.get_state()
    keep = covariance_keep(torch.rand(3, 5), torch.ones(3, 5).bool(), EVERYTHING, dice, clip_share=0.0)
    assert keep.all()
    assert torch.equal(dice.get_state(), before)


def test_kl_cov_penalises_the_highest_covariances_by_hand():
    covariances, mask = _row(1, 4, 9, 3, 2), torch.tensor([[True, True, False, True, True]])
    chosen = highest_covariances(covariances, mask, share=0.5)
    assert chosen.tolist() == [[False, True, False, True, False]]
    logp, old, advantages = _row(-1, -1, -1, -2, -1), _row(-1, -1.5, -1, -1, -1), _row(1, 1, 1, -1, -1)
    losses = kl_cov_losses(logp, old, advantages, _row(1, 2, 1, 1, 1), chosen, beta=0.1)
    torch.testing.assert_close(losses, _row(-1, -2 + 0.05, -1, 1 + 0.1, 1))


def test_kl_cov_that_chooses_nobody_is_bit_identical_to_the_unclipped_surrogate():
    logp, old, advantages = torch.randn(3, 2, 8).unbind()
    ratio, mask = (logp - old).exp(), torch.ones(2, 8).bool()
    nobody = highest_covariances(torch.rand(2, 8), mask, share=0.0)
    assert torch.equal(kl_cov_losses(logp, old, advantages, ratio, nobody, beta=1.0), -ratio * advantages)


def test_the_penalty_draws_a_token_back_to_where_it_was():
    logp = _row(-1.0, -3.0).requires_grad_()
    kl_cov_losses(logp, _row(-2, -2), _row(0, 0), _row(1, 1), torch.ones(1, 2).bool(), beta=1.0).sum().backward()
    assert logp.grad[0, 0] > 0 > logp.grad[0, 1]
