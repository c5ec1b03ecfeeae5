import pytest
import torch

from engine.algorithms.chunks import chunk_numbers
from engine.algorithms.mismatch import corrected, mismatch_keep, mismatch_statistics, mismatch_weights
from engine.algorithms.ratios import ratios_of

MASK = torch.tensor([[True, True, True, False, True]])
TRAINED = torch.tensor([[8.0, 2.0, 1.0, 100.0, 0.1]]).log()
SAMPLED = torch.zeros(1, 5)


def _ratios(size: str) -> torch.Tensor:
    return ratios_of(size, TRAINED, SAMPLED, MASK, chunk_numbers(MASK))


@pytest.mark.parametrize(
    ("size", "bound", "kept"),
    [
        ("token", 5.0, [False, True, True, False, True]),
        ("chunk", 5.0, [True, True, True, False, True]),  # (8 * 2 * 1)^(1/3) = 2.5
        ("chunk", 2.0, [False, False, False, False, True]),
        ("sequence", 2.0, [True, True, True, False, True]),  # (8 * 2 * 1 * 0.1)^(1/4) = 1.12
    ],
)
def test_masks_at_the_three_sizes_by_hand(size, bound, kept):
    assert mismatch_keep(_ratios(size), MASK, bound=bound).tolist() == [kept]


def test_weights_are_truncated_above_only_by_hand():
    torch.testing.assert_close(mismatch_weights(_ratios("token"), MASK), torch.tensor([[2.0, 2.0, 1.0, 1.0, 0.1]]))


def test_statistics_by_hand():
    ratios = _ratios("token")
    statistics = mismatch_statistics(ratios, MASK, mismatch_keep(ratios, MASK))
    assert statistics.mean == pytest.approx(11.1 / 4)
    assert statistics.ratio_max == pytest.approx(8.0)
    assert statistics.masked_share == 0.25


def test_statistics_of_parts_add_up_to_those_of_the_whole():
    ratios, mask = torch.rand(7, 11).double() * 4, torch.rand(7, 11) < 0.5
    keep = mismatch_keep(ratios, mask, bound=2.0)
    whole = mismatch_statistics(ratios, mask, keep)
    parts = [mismatch_statistics(ratios[rows], mask[rows], keep[rows]) for rows in (slice(0, 3), slice(3, 7))]
    together = parts[0] + parts[1]
    assert (together.mean, together.ratio_max) == pytest.approx((whole.mean, whole.ratio_max))
    assert (together.masked_tokens, together.tokens) == (whole.masked_tokens, whole.tokens)


def test_an_empty_batch_shows_no_mismatch():
    nothing = mismatch_statistics(torch.ones(1, 2), torch.zeros(1, 2).bool(), torch.zeros(1, 2).bool())
    assert (nothing.mean, nothing.masked_share, nothing.tokens) == (1.0, 0.0, 0)


@pytest.mark.parametrize("size", ["token", "chunk", "sequence"])
def test_where_the_engines_agree_correction_is_bit_identical_to_none(size):
    losses, logp, mask = torch.randn(3, 8), -torch.rand(3, 8), torch.rand(3, 8) < 0.6
    ratios = ratios_of(size, logp, logp, mask, chunk_numbers(mask))
    assert torch.equal(mismatch_keep(ratios, mask), mask)
    assert torch.equal(corrected(losses, mismatch_weights(ratios, mask)), losses)
    assert corrected(losses, None) is losses


def test_no_gradient_flows_through_a_correction():
    trained = TRAINED.clone().requires_grad_()
    assert not mismatch_weights(ratios_of("token", trained, SAMPLED, MASK), MASK).requires_grad
