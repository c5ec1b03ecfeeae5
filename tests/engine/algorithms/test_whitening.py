import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.whitening import whitened


def _row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize(("unbiased", "std"), [(False, 2.0), (True, 2.0 * (3 / 2) ** 0.5)])
def test_whitening_by_hand(unbiased, std):
    """The variance of 1, 1 + sqrt(6) and 1 - sqrt(6) is 12 / 3 = 4."""
    values = _row(1, 1 + 6**0.5, 99, 1 - 6**0.5)
    white = whitened(values, torch.tensor([[True, True, False, True]]), unbiased_std=unbiased)
    torch.testing.assert_close(white, _row(0, 6**0.5 / std, 0, -(6**0.5) / std), rtol=1e-5, atol=1e-9)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), min_size=1, max_size=8))
def test_a_weight_counts_as_often_as_it_says(pairs):
    values, weights = (torch.tensor(column).double() for column in zip(*pairs, strict=True))
    repeated = values.repeat_interleave(weights.long())
    white = whitened(values, weights).repeat_interleave(weights.long())
    torch.testing.assert_close(white, whitened(repeated, torch.ones_like(repeated)), rtol=1e-6, atol=1e-9)


def test_what_has_no_weight_never_counts():
    polluted = whitened(_row(1, 3, float("nan")), _row(1, 1, 0))
    torch.testing.assert_close(polluted, _row(-1, 1, 0), rtol=1e-5, atol=0)
