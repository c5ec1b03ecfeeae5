import math

import pytest
import torch

from engine.algorithms.preference import dpo_loss


def _row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


CALL, OTHER_CALL = torch.tensor([[False, True, True]]), torch.tensor([[True, False]])


def _loss(chosen, rejected, beta: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    return dpo_loss(chosen, _row(0, -2, -2), CALL, rejected, _row(-1, 0), OTHER_CALL, beta=beta)


def test_dpo_by_hand():
    """d_chosen = (-1 + 2) + (-1 + 2) = 2, d_rejected = -2 + 1 = -1; -log sigmoid(0.5 * 3)."""
    total, weight = _loss(_row(-50, -1, -1), _row(-2, -50))
    assert total.item() == pytest.approx(math.log(1 + math.exp(-1.5)))
    assert weight.item() == 1


@pytest.mark.parametrize("beta", [0.1, 5.0])
def test_at_the_reference_the_loss_is_log_2(beta):
    assert _loss(_row(-9, -2, -2), _row(-1, -9), beta)[0].item() == pytest.approx(math.log(2))


def test_descending_raises_the_corrected_call_and_lowers_the_failed_one_and_nothing_else():
    chosen, rejected = _row(-9, -2, -2).requires_grad_(), _row(-1, -9).requires_grad_()
    _loss(chosen, rejected)[0].backward()
    torch.testing.assert_close(chosen.grad, _row(0, -0.25, -0.25))
    torch.testing.assert_close(rejected.grad, _row(0.25, 0))


def test_a_pair_with_an_empty_side_is_no_pair():
    nothing = torch.zeros_like(OTHER_CALL)
    total, weight = dpo_loss(_row(0, 0, 0), _row(0, 0, 0), CALL, _row(0, 0), _row(0, 0), nothing)
    assert (total.item(), weight.item()) == (0, 0)
