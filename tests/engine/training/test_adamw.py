"""The engine's AdamW is torch's, to the last bit, and reads what torch's class has saved."""

from collections.abc import Sequence
from copy import deepcopy

import pytest
import torch
from torch import nn

from engine.training.adamw import BETAS, AdamW

SHAPES = [(7, 5), (5,), (3, 2, 4)]


def parameters(seed: int = 0) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES]


def with_gradients(trained: Sequence[nn.Parameter], step: int) -> None:
    """Every third step leaves the last parameter without a gradient, as an expert that no token was routed to."""
    random = torch.Generator().manual_seed(1000 + step)
    for number, parameter in enumerate(trained):
        gradient = torch.randn(parameter.shape, generator=random)
        parameter.grad = None if step % 3 == 0 and number == 2 else gradient


def torchs(trained: Sequence[nn.Parameter], weight_decay: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(trained, betas=BETAS, weight_decay=weight_decay, foreach=True)


def steps(optimizer: AdamW | torch.optim.AdamW, trained: Sequence[nn.Parameter], numbers: range) -> None:
    for step in numbers:
        with_gradients(trained, step)
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
        optimizer.step()


def assert_same(ours: Sequence[nn.Parameter], theirs: Sequence[nn.Parameter]) -> None:
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_every_step_is_that_of_torchs_class_to_the_last_bit(weight_decay: float) -> None:
    ours, theirs = parameters(), parameters()
    mine, other = AdamW(ours, weight_decay=weight_decay), torchs(theirs, weight_decay)
    for step in range(20):
        steps(mine, ours, range(step, step + 1))
        steps(other, theirs, range(step, step + 1))
        assert_same(ours, theirs)
    assert not torch.equal(ours[0], parameters()[0])


def test_what_torchs_class_saved_is_gone_on_with_to_the_last_bit() -> None:
    ours, theirs = parameters(), parameters()
    other = torchs(theirs, 0.1)
    steps(other, theirs, range(5))
    with torch.no_grad():
        for mine, moved in zip(ours, theirs, strict=True):
            mine.copy_(moved)
    loaded = AdamW(ours)
    loaded.load_state_dict(deepcopy(other.state_dict()))
    steps(loaded, ours, range(5, 12))
    steps(other, theirs, range(5, 12))
    assert_same(ours, theirs)


def test_its_own_state_is_gone_on_with_and_has_the_form_of_torchs() -> None:
    ours, theirs = parameters(), parameters()
    mine = AdamW(ours, weight_decay=0.1)
    steps(mine, ours, range(5))
    with torch.no_grad():
        for other, moved in zip(theirs, ours, strict=True):
            other.copy_(moved)
    again = AdamW(theirs)
    again.load_state_dict(deepcopy(mine.state_dict()))
    steps(mine, ours, range(5, 12))
    steps(again, theirs, range(5, 12))
    assert_same(ours, theirs)
    saved, form = mine.state_dict(), torchs(theirs, 0.1).state_dict()
    assert saved["param_groups"][0]["params"] == form["param_groups"][0]["params"]
    assert set(saved["param_groups"][0]) <= set(form["param_groups"][0])


def test_moments_of_other_parameters_are_refused() -> None:
    saved = AdamW(parameters()[:2]).state_dict()
    with pytest.raises(ValueError, match="moments of 2 parameters, and 3 are trained"):
        AdamW(parameters()).load_state_dict(saved)


def test_a_forgotten_gradient_moves_nothing() -> None:
    trained = parameters()
    optimizer = AdamW(trained, weight_decay=0.1)
    steps(optimizer, trained, range(1, 2))
    optimizer.zero_grad()
    before = [parameter.detach().clone() for parameter in trained]
    optimizer.step()
    assert_same(trained, [nn.Parameter(tensor) for tensor in before])
