"""What every loss of a batch of sequences owes its caller: (sum, weight) that add up over any cut of the batch,
nothing from outside the mask, and a push in the direction of the advantage."""

from collections.abc import Callable

import pytest
import torch

from engine.algorithms.aggregation import aggregated
from engine.algorithms.chunks import chunk_numbers
from engine.algorithms.experience import boosted_surrogate
from engine.algorithms.gae import critic_loss
from engine.algorithms.ipa import ChunkTokens
from engine.algorithms.losses import objective_for
from engine.algorithms.objectives import PolicyTokens
from engine.algorithms.preference import dpo_loss
from engine.algorithms.ratios import sequence_ratios, token_ratios
from engine.algorithms.self_imitation import self_imitation_loss
from engine.algorithms.supervised import masked_likelihood_loss
from engine.algorithms.weighted_gradients import cispo_losses, reinforce_losses, tis_losses, topr_losses
from engine.spec.objective import Gspo
from tests.engine.algorithms.test_ipa import ipa_loss

Batch = dict[str, torch.Tensor]
LENGTHS = [9, 4, 12, 7, 1, 10]


def _batch(seed: int = 0) -> Batch:
    """Ragged sequences; each has the same advantage on all its tokens, as sequence-wide credit gives."""
    dice = torch.Generator().manual_seed(seed)
    shape = (len(LENGTHS), max(LENGTHS))

    def noise() -> torch.Tensor:
        return torch.randn(shape, generator=dice, dtype=torch.float64)

    inside = torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None]
    old = -noise().abs()
    sampled = inside & (torch.rand(shape, generator=dice) < 0.7)
    return {
        "logp": old + noise() * 0.3,
        "old": old,
        "rollout": old + noise() * 0.1,
        "advantages": noise()[:, :1].expand(shape).clone(),
        "mask": sampled,
        "expert": inside & ~sampled,
        "flag": torch.rand(shape, generator=dice) < 0.5,
        "chunk": chunk_numbers(inside & (torch.arange(shape[1]) % 4 != 3)),
    }


def _tokens(batch: Batch) -> PolicyTokens:
    return PolicyTokens(batch["logp"], batch["old"], batch["advantages"], batch["mask"])


def _gspo_loss(batch: Batch, spec: Gspo) -> tuple[torch.Tensor, torch.Tensor]:
    return objective_for(spec, max_response_tokens=1).loss(_tokens(batch))


def _mean(losses: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return aggregated(losses, batch["mask"], "token-mean", max_response_tokens=1)


def _chunk_tokens(batch: Batch) -> ChunkTokens:
    in_chunk = batch["chunk"] >= 0
    return ChunkTokens(
        batch["logp"], batch["old"], batch["rollout"], batch["advantages"], batch["chunk"],
        batch["mask"] & in_chunk, batch["expert"] & in_chunk,
    )  # fmt: skip


def _sequence_ratios(batch: Batch) -> torch.Tensor:
    return sequence_ratios(batch["logp"], batch["old"], batch["mask"])


POLICY_LOSSES: dict[str, Callable[[Batch], tuple[torch.Tensor, torch.Tensor]]] = {
    "reinforce": lambda b: _mean(reinforce_losses(b["logp"], b["advantages"]), b),
    "tis": lambda b: _mean(tis_losses(b["logp"], b["advantages"], _sequence_ratios(b)), b),
    "topr": lambda b: _mean(topr_losses(b["logp"], b["advantages"], _sequence_ratios(b)), b),
    "cispo": lambda b: _mean(cispo_losses(b["logp"], b["advantages"], token_ratios(b["logp"], b["old"])), b),
    "gspo": lambda b: _gspo_loss(b, Gspo(clip_low=0.05, clip_high=0.05)),
    "boosted": lambda b: _mean(boosted_surrogate(token_ratios(b["logp"], b["old"]), b["advantages"], b["flag"]), b),
    "self-imitation": lambda b: self_imitation_loss(_tokens(b), b["flag"], strength=0.5, max_response_tokens=8),
    "ipa": lambda b: ipa_loss(_chunk_tokens(b), mismatch_bound=1.05, imitation_weight=0.3),
    "ipa, by sequence": lambda b: ipa_loss(_chunk_tokens(b), aggregation="seq-mean-token-mean"),
}
OTHER_LOSSES: dict[str, Callable[[Batch], tuple[torch.Tensor, torch.Tensor]]] = {
    "critic": lambda b: critic_loss(b["logp"], b["old"], b["advantages"], b["mask"]),
    "supervised": lambda b: masked_likelihood_loss(b["logp"], b["mask"]),
    "dpo": lambda b: dpo_loss(b["logp"], b["old"], b["mask"], b["rollout"], b["old"], b["expert"]),
}
every_loss = pytest.mark.parametrize("loss", (POLICY_LOSSES | OTHER_LOSSES).values(), ids=POLICY_LOSSES | OTHER_LOSSES)
every_policy_loss = pytest.mark.parametrize("loss", POLICY_LOSSES.values(), ids=POLICY_LOSSES)


def _gradient(loss: Callable[[Batch], tuple[torch.Tensor, torch.Tensor]], parts: list[Batch], width: int):
    """The gradient of the sums of all parts over their common weight, one part after the other; padded to ``width``."""
    weight = sum(loss(part)[1].item() for part in parts)
    gradients = []
    for part in parts:
        part = part | {"logp": part["logp"].clone().requires_grad_()}
        (loss(part)[0] / weight).backward()
        gradients.append(torch.nn.functional.pad(part["logp"].grad, (0, width - part["logp"].shape[1])))
    return torch.cat(gradients)


@every_loss
@pytest.mark.parametrize("sizes", [[1] * 6, [2, 4], [3, 1, 2]])
def test_cutting_the_batch_and_its_padding_changes_no_gradient(loss, sizes):
    batch, parts, start = _batch(), [], 0
    for size in sizes:
        rows, longest = slice(start, start + size), max(LENGTHS[start : start + size])
        parts.append({name: values[rows, :longest] for name, values in batch.items()})
        start += size
    whole = _gradient(loss, [batch], 12)
    assert (whole != 0).any()
    torch.testing.assert_close(_gradient(loss, parts, 12), whole, rtol=0, atol=1e-6)
    torch.testing.assert_close(_gradient(loss, parts, 12), whole, rtol=1e-9, atol=1e-12)


@every_loss
def test_what_stands_outside_every_mask_changes_no_bit(loss):
    batch = _batch()
    outside = ~(batch["mask"] | batch["expert"])
    polluted = batch | {
        name: batch[name].masked_fill(outside, -123.0) for name in ("logp", "old", "rollout", "advantages")
    }
    assert outside.any()
    assert torch.equal(loss(polluted)[0], loss(batch)[0])
    assert torch.equal(loss(polluted)[1], loss(batch)[1])


@every_loss
def test_the_order_of_the_sequences_does_not_matter(loss):
    batch, order = _batch(), torch.tensor([3, 0, 5, 1, 4, 2])
    turned = _gradient(loss, [{name: values[order] for name, values in batch.items()}], 12)
    torch.testing.assert_close(turned, _gradient(loss, [batch], 12)[order])


@every_policy_loss
def test_descending_makes_good_tokens_likelier_and_bad_ones_less(loss):
    batch = _batch()
    push = -_gradient(loss, [batch], 12)
    assert torch.all(push * batch["advantages"] >= 0)
    assert (push * batch["advantages"] > 0).any()


@pytest.mark.parametrize("name", ["tis", "topr", "cispo", "gspo", "boosted", "ipa without experts"])
def test_on_policy_every_objective_has_the_gradient_of_reinforce(name):
    batch = _batch()
    batch |= {"old": batch["logp"].clone(), "rollout": batch["logp"].clone(), "expert": torch.zeros_like(batch["mask"])}
    batch["mask"] = batch["mask"] & (batch["chunk"] >= 0)
    losses = POLICY_LOSSES | {
        "gspo": lambda b: _gspo_loss(b, Gspo(aggregation="token-mean")),
        "ipa without experts": lambda b: ipa_loss(_chunk_tokens(b)),
    }
    plain = _gradient(POLICY_LOSSES["reinforce"], [batch], 12)
    torch.testing.assert_close(_gradient(losses[name], [batch], 12), plain, rtol=1e-12, atol=1e-15)
