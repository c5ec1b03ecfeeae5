import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.chunks import chunk_numbers
from engine.algorithms.ratios import chunk_ratios, kl_k3, ratios_of, sequence_ratios, token_ratios

logps = st.floats(-30, 0)


def test_equal_policies_have_ratio_exactly_1_and_kl_exactly_0():
    logp = torch.tensor([-0.1, -7.3, -1e-8])
    assert torch.equal(token_ratios(logp, logp), torch.ones(3))
    assert torch.equal(kl_k3(logp, logp), torch.zeros(3))


@given(logps, logps)
def test_k3_is_never_negative_and_follows_its_formula(logp, logp_sampler):
    a, b = torch.tensor(logp, dtype=torch.float64), torch.tensor(logp_sampler, dtype=torch.float64)
    difference = max(-20.0, min(20.0, logp - logp_sampler))
    assert kl_k3(a, b) >= 0
    assert kl_k3(a, b).item() == pytest.approx(math.exp(difference) - 1 - difference, rel=1e-9, abs=1e-12)


def test_k3_in_expectation_is_the_kl_of_sampler_to_policy():
    """Summed over a whole distribution instead of drawn from it."""
    sampler, policy = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    expected = (sampler * (sampler / policy).log()).sum()
    torch.testing.assert_close((sampler * kl_k3(policy.log(), sampler.log())).sum(), expected)


def test_ratio_by_hand():
    assert token_ratios(torch.tensor(math.log(0.6)), torch.tensor(math.log(0.2))).item() == pytest.approx(3.0)


MASK = torch.tensor([[False, True, True, False, True]])
LOGP = torch.tensor([[9.0, 2.0, 8.0, 5.0, 3.0]], dtype=torch.float64).log()
REFERENCE = torch.zeros(1, 5, dtype=torch.float64)


def test_chunk_ratio_by_hand():
    """Ratios 2 and 8 in the first chunk, geometric mean 4; 3 alone in the second; 1 on given tokens."""
    ratios = chunk_ratios(LOGP, REFERENCE, chunk_numbers(MASK))
    torch.testing.assert_close(ratios, torch.tensor([[1.0, 4.0, 4.0, 1.0, 3.0]], dtype=torch.float64))


def test_sequence_ratio_by_hand():
    ratios = sequence_ratios(LOGP, REFERENCE, MASK)
    expected = (2 * 8 * 3) ** (1 / 3)
    torch.testing.assert_close(ratios[MASK], torch.full((3,), expected, dtype=torch.float64))
    assert torch.equal(ratios[~MASK], torch.ones(2, dtype=torch.float64))


def _random(rows: int = 5, length: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dice = torch.Generator().manual_seed(3)
    logp, reference = (-torch.rand(2, rows, length, generator=dice, dtype=torch.float64) * 5).unbind()
    return logp, reference, torch.rand(rows, length, generator=dice) < 0.6


def test_one_chunk_of_all_tokens_is_the_sequence_and_a_chunk_per_token_is_the_token():
    logp, reference, mask = _random()
    whole, single = torch.zeros_like(mask).long(), torch.arange(12).expand(5, 12)
    everything = torch.ones_like(mask)
    assert torch.equal(chunk_ratios(logp, reference, whole), sequence_ratios(logp, reference, everything))
    torch.testing.assert_close(chunk_ratios(logp, reference, single), token_ratios(logp, reference))


@pytest.mark.parametrize("size", ["token", "chunk", "sequence"])
def test_at_every_size_equal_policies_have_ratio_exactly_1(size):
    logp, _, mask = _random()
    assert torch.equal(ratios_of(size, logp, logp, mask, chunk_numbers(mask)), torch.ones_like(logp))


def _alone(size: str, logp: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return ratios_of(size, logp, reference, mask, chunk_numbers(mask))


@pytest.mark.parametrize("size", ["token", "chunk", "sequence"])
def test_padding_and_company_do_not_move_a_ratio(size):
    logp, reference, mask = _random()
    wide = [torch.nn.functional.pad(x, (0, 4), value=-7.0) for x in (logp, reference)]
    wide_mask = torch.nn.functional.pad(mask, (0, 4))
    padded = ratios_of(size, *wide, wide_mask, chunk_numbers(wide_mask))[:, :12]
    alone = torch.cat([_alone(size, logp[i : i + 1], reference[i : i + 1], mask[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(padded[mask], alone[mask], rtol=1e-12, atol=0)


def test_one_outlier_moves_a_geometric_mean_less_than_its_own_ratio():
    logp, mask = torch.zeros(1, 10), torch.ones(1, 10, dtype=torch.bool)
    far = logp.clone()
    far[0, 4] = 5.0
    assert sequence_ratios(far, logp, mask)[0, 0].item() == pytest.approx(math.exp(0.5))


def test_the_gradient_of_a_chunk_ratio_reaches_its_tokens_in_equal_parts_and_no_others():
    logp = REFERENCE.clone().requires_grad_()
    chunk_ratios(logp, REFERENCE, chunk_numbers(MASK))[0, 1].backward()
    torch.testing.assert_close(logp.grad, torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0]], dtype=torch.float64))


def test_chunk_ratios_ask_for_chunks():
    with pytest.raises(ValueError, match="chunks"):
        ratios_of("chunk", LOGP, REFERENCE, MASK)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_counts_and_exponentiates_as_float32_does(dtype):
    """3,000 tokens whose log-ratio is 1/8, and one of 16: neither a count nor e^16 fits into half precision."""
    logp_1T = torch.full((1, 3000), 0.125, dtype=dtype)
    mask_1T = torch.ones(1, 3000, dtype=torch.bool)
    assert sequence_ratios(logp_1T, torch.zeros_like(logp_1T), mask_1T)[0, 0].item() == pytest.approx(math.exp(0.125))
    far = torch.tensor([16.0], dtype=dtype)
    assert token_ratios(far, torch.zeros_like(far)).item() == pytest.approx(math.exp(16))
    assert kl_k3(far, torch.zeros_like(far)).item() == pytest.approx(math.exp(16) - 17)
