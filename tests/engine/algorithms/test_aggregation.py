from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.aggregation import aggregated
from engine.spec.objective import Aggregation

every_way = pytest.mark.parametrize("how", get_args(Aggregation))

LOSSES_BT = torch.tensor([[1.0, 2.0, 3.0, 0.0], [10.0, 0.0, 0.0, 0.0]])
MASK_BT = torch.tensor([[True, True, True, False], [True, False, False, False]])


def _mean(losses_BT, mask_BT, how) -> float:
    total, weight = aggregated(losses_BT, mask_BT, how, max_response_tokens=8)
    return (total / weight).item()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("token-mean", 16 / 4),
        ("seq-mean-token-mean", (6 / 3 + 10 / 1) / 2),
        ("seq-mean-token-sum", (6 + 10) / 2),
        ("seq-mean-token-sum-norm", (6 / 8 + 10 / 8) / 2),
    ],
)
def test_each_aggregation_by_hand(how, expected):
    assert _mean(LOSSES_BT, MASK_BT, how) == pytest.approx(expected)


@every_way
@pytest.mark.parametrize("garbage", [1e9, float("inf"), float("nan")])
def test_what_is_masked_never_counts(how, garbage):
    polluted = LOSSES_BT.masked_fill(~MASK_BT, garbage)
    assert _mean(polluted, MASK_BT, how) == _mean(LOSSES_BT, MASK_BT, how)


@every_way
def test_a_masked_value_gets_no_gradient(how):
    losses = LOSSES_BT.clone().requires_grad_()
    aggregated(losses, MASK_BT, how, max_response_tokens=8)[0].backward()
    assert torch.equal(losses.grad != 0, MASK_BT)


@every_way
def test_wholly_masked_sequences_count_nowhere(how):
    with_masked = torch.cat((MASK_BT, torch.zeros(3, 4, dtype=torch.bool)))
    losses = torch.cat((LOSSES_BT, torch.full((3, 4), 7.0)))
    assert _mean(losses, with_masked, how) == _mean(LOSSES_BT, MASK_BT, how)


@every_way
def test_nothing_at_all_has_weight_zero(how):
    total, weight = aggregated(LOSSES_BT, torch.zeros_like(MASK_BT), how, max_response_tokens=8)
    assert (total.item(), weight.item()) == (0, 0)


@every_way
@given(seed=st.integers(0, 1000), cut=st.integers(1, 9), padding=st.integers(0, 5))
def test_sums_and_weights_add_up_over_any_cut_and_any_padding(how, seed, cut, padding):
    dice = torch.Generator().manual_seed(seed)
    losses = torch.randn(10, 6, generator=dice, dtype=torch.float64)
    mask = torch.rand(10, 6, generator=dice) < 0.5
    whole = aggregated(losses, mask, how, max_response_tokens=8)
    parts = []
    for rows in (slice(0, cut), slice(cut, 10)):
        padded = torch.nn.functional.pad(losses[rows], (0, padding), value=3.0)
        padded_mask = torch.nn.functional.pad(mask[rows], (0, padding), value=False)
        parts.append(aggregated(padded, padded_mask, how, max_response_tokens=8))
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole[0])
    assert parts[0][1] + parts[1][1] == whole[1]
