import pytest
import torch

from engine.algorithms.supervised import masked_likelihood_loss

LOGP = torch.tensor([[-9.0, -1.0, -2.0, -9.0, -3.0], [-9.0, -4.0, -9.0, -9.0, -9.0]])
TURNS = torch.tensor([[-1, 0, 0, -1, 1], [-1, 0, -1, -1, -1]])


@pytest.mark.parametrize(
    ("learned", "total", "weight"), [([0, 1], 10.0, 4), ([0], 7.0, 3), ([1], 3.0, 1), ([], 0.0, 0)]
)
def test_masked_likelihood_by_hand(learned: list[int], total: float, weight: int) -> None:
    """``learned`` are the turns whose m_k is 1."""
    mask = torch.isin(TURNS, torch.tensor(learned, dtype=torch.long))
    loss_sum, tokens = masked_likelihood_loss(LOGP, mask)
    assert (loss_sum.item(), tokens.item()) == (total, weight)


def test_only_learned_tokens_are_made_likelier() -> None:
    logp = LOGP.clone().requires_grad_()
    mask = torch.tensor([[False, False, False, False, True], [False, True, False, False, False]])
    masked_likelihood_loss(logp, mask)[0].backward()
    assert logp.grad.tolist() == [[0, 0, 0, 0, -1], [0, -1, 0, 0, 0]]
