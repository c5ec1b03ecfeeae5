import pytest
import torch

from engine.algorithms.supervised import masked_likelihood_loss

LOGP = torch.tensor([[-9.0, -1.0, -2.0, -9.0, -3.0], [-9.0, -4.0, -9.0, -9.0, -9.0]])
TURNS = torch.tensor([[-1, 0, 0, -1, 1], [-1, 0, -1, -1, -1]])


@pytest.mark.parametrize(
    ("learned", "total", "weight"),
    [
        (None, 10.0, 4),
        ([[True, True], [True, True]], 10.0, 4),
        ([[True, False], [True, False]], 7.0, 3),
        ([[False, True], [False, True]], 3.0, 1),
        ([[False, False], [False, False]], 0.0, 0),
    ],
)
def test_masked_likelihood_by_hand(learned, total, weight):
    learned_BK = None if learned is None else torch.tensor(learned)
    got = masked_likelihood_loss(LOGP, TURNS, learned_BK)
    assert (got[0].item(), got[1].item()) == (total, weight)


def test_every_turn_learned_is_bit_identical_to_no_mask():
    logp, turns = -torch.rand(6, 20), torch.randint(-1, 4, (6, 20))
    with_mask = masked_likelihood_loss(logp, turns, torch.ones(6, 4).bool())
    assert all(torch.equal(a, b) for a, b in zip(with_mask, masked_likelihood_loss(logp, turns), strict=True))


def test_only_tokens_of_learned_turns_are_made_likelier():
    logp = LOGP.clone().requires_grad_()
    masked_likelihood_loss(logp, TURNS, torch.tensor([[False, True], [True, True]]))[0].backward()
    assert logp.grad.tolist() == [[0, 0, 0, 0, -1], [0, -1, 0, 0, 0]]
