"""Truncated log-probs, entropies and gradients against a renormalisation that is written out in float64."""

import math
import random
from collections.abc import Sequence

import pytest
import torch

from engine.inference.torch.sampling import NOT_FORCED, Draws, sample
from engine.spec.generation import Distribution, GenerateRequest, Truncation
from engine.training.policy import entropy, logits_of

POSITIONS = 5


def kept(scaled: Sequence[float], cut: Truncation) -> set[int]:
    """Tokens of equal logits share their fate."""
    tokens = {
        token
        for token, logit in enumerate(scaled)
        if not cut.top_k or sum(other > logit for other in scaled) < cut.top_k
    }
    mass = {token: math.exp(scaled[token] - max(scaled)) for token in tokens}
    total = math.fsum(mass.values())
    likelier = {token: math.fsum(mass[other] for other in tokens if scaled[other] > scaled[token]) for token in tokens}
    tokens = {token for token in tokens if cut.top_p == 1 or likelier[token] / total < cut.top_p}
    return {token for token in tokens if mass[token] >= cut.min_p * (1 - 1e-7)}


def drawn(dice: random.Random) -> tuple[torch.Tensor, torch.Tensor, Distribution]:
    """Logits of few levels, so that ties stand at every border, targets anywhere, and a truncation."""
    vocabulary = dice.choice([3, 7, 20, 50])
    levels = [dice.gauss(0, 2) for _ in range(dice.choice([1, 2, 4, vocabulary]))]
    logits_NV = torch.tensor(
        [
            [dice.choice(levels) if dice.random() < 0.8 else dice.gauss(0, 3) for _ in range(vocabulary)]
            for _ in range(POSITIONS)
        ]
    )
    targets_N = torch.tensor([dice.randrange(vocabulary) for _ in range(POSITIONS)])
    cut = Truncation(
        top_k=dice.choice([0, 1, 2, 5, vocabulary, vocabulary + 3]),
        top_p=dice.choice([1.0, 1 - 1e-12, 0.9, 0.5, 0.1, 1e-12]),
        min_p=dice.choice([0.0, 0.05, 0.5, 1.0]),
    )
    return logits_NV, targets_N, Distribution(dice.choice([1.0, 0.3, 0.7, 2.0]), cut)


@pytest.mark.parametrize("seed", range(30))
def test_value_entropy_and_slope_are_those_of_the_kept_set_with_the_sampled_token(seed: int) -> None:
    logits_NV, targets_N, distribution = drawn(random.Random(seed))
    logits_NV.requires_grad_()
    logp_NV = logits_of(distribution, logits_NV, targets_N).log_softmax(-1)
    logp_N = logp_NV.gather(1, targets_N[:, None])[:, 0]
    (slopes_NV,) = torch.autograd.grad(logp_N.sum(), logits_NV)
    entropy_N = entropy(logp_NV.detach())
    for position, target in enumerate(targets_N.tolist()):
        scaled = (logits_NV[position].detach() / distribution.temperature).tolist()
        inside = sorted(kept(scaled, distribution.truncation) | {target})
        exact_V = torch.tensor(scaled, dtype=torch.float64, requires_grad=True)
        expected = exact_V[target] - exact_V[inside].logsumexp(0)
        (slope_V,) = torch.autograd.grad(expected, exact_V)
        probs_K = exact_V[inside].detach().softmax(0)
        assert logp_N[position].item() == pytest.approx(expected.item(), abs=1e-5)
        assert entropy_N[position].item() == pytest.approx(-(probs_K * probs_K.log()).sum().item(), abs=1e-5)
        torch.testing.assert_close(slopes_NV[position].double(), slope_V / distribution.temperature, rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_the_generator_draws_from_the_kept_set_and_reports_what_the_trainer_computes(seed: int) -> None:
    dice = random.Random(seed)
    logits_NV, _, distribution = drawn(dice)
    draws = Draws(POSITIONS)
    for slot in range(POSITIONS):
        request = GenerateRequest(
            session="s",
            new_ids=(1,),
            max_new_tokens=1,
            stop_ids=frozenset(),
            temperature=distribution.temperature,
            seed=0,
            logprob_temperature=distribution.temperature,
            truncation=distribution.truncation,
            logprobs_truncated=True,
        )
        draws.put(slot, request, uniform=dice.choice([0.0, dice.random(), 1 - 2**-53]), forced=NOT_FORCED)
    token_N, reported_N = sample(logits_NV, draws.block(slice(0, POSITIONS), torch.device("cpu")))
    trained_NV = logits_of(distribution, logits_NV, token_N).log_softmax(-1)
    torch.testing.assert_close(trained_NV.gather(1, token_N[:, None])[:, 0], reported_N, rtol=0, atol=1e-6)
    for logits_V, token in zip(logits_NV, token_N.tolist(), strict=True):
        assert token in kept((logits_V / distribution.temperature).tolist(), distribution.truncation)
