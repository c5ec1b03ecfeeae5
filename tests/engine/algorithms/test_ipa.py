from dataclasses import replace

import pytest
import torch

from engine.algorithms.aggregation import aggregated
from engine.algorithms.chunk_return import chunk_returns
from engine.algorithms.chunks import chunk_numbers, over_tokens
from engine.algorithms.ipa import (
    ChunkTokens,
    chunk_reinforcement_loss,
    chunk_reinforcement_losses,
    expert_imitation_loss,
    imitation_losses,
)
from engine.algorithms.ratios import sequence_ratios
from engine.algorithms.weighted_gradients import reinforce_losses, topr_losses
from engine.spec.objective import Aggregation


def ipa_loss(
    tokens: ChunkTokens,
    *,
    mismatch_bound: float | None = 5.0,
    imitation_weight: float = 0.1,
    aggregation: Aggregation = "token-mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Eq. 8: the sums of both terms, and their weights, added.  A lambda_IL of 0 is the absence of the second."""
    total, weight = chunk_reinforcement_loss(tokens, mismatch_bound=mismatch_bound, aggregation=aggregation)
    if not imitation_weight:
        return total, weight
    imitation, imitated = expert_imitation_loss(tokens, imitation_weight=imitation_weight, aggregation=aggregation)
    return total + imitation, weight + imitated


def _row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def _by_hand(final_reward: float) -> ChunkTokens:
    """Expert chunk 0 of likelihoods 0.4 and 0.1; sampled chunk 1 with ratios 2 and 1/8; chunk 2 with ratio 3.

    The expert earned 1, so that its chunk has the return 0.25, whatever the rollout earned.
    """
    mask = torch.tensor([[True, True, False, True, True, False, True]])
    chunks = chunk_numbers(mask)
    logp = _row(0.4, 0.1, 1, 0.2, 0.05, 1, 0.3).log().requires_grad_()
    old = _row(0.4, 0.1, 1, 0.1, 0.4, 1, 0.1).log()
    returns_K = chunk_returns(final_reward, 3, gamma=0.5).double()
    returns_K[0] = chunk_returns(1.0, 3, gamma=0.5)[0]
    returns = over_tokens(returns_K[None], chunks)
    return ChunkTokens(logp, old, old.clone(), returns, chunks, mask & (chunks > 0), mask & (chunks == 0))


def test_positive_chunks_by_hand():
    """Returns 0.25, 0.5 and 1; no ratio; the expert's chunk weighs 0.1 * sqrt(0.4 * 0.1) * 0.25 = 0.005."""
    tokens = _by_hand(1.0)
    total, weight = ipa_loss(tokens)
    total.backward()
    assert weight.item() == 5
    torch.testing.assert_close(tokens.logp_BT.grad, _row(-0.005, -0.005, 0, -0.5, -0.5, 0, -1))


def test_negative_chunks_by_hand():
    """Chunk 1 has rho sqrt(2 / 8) = 0.5, chunk 2 rho 3, truncated to 1."""
    tokens = _by_hand(-1.0)
    ipa_loss(tokens, imitation_weight=0.0)[0].backward()
    torch.testing.assert_close(tokens.logp_BT.grad, _row(0, 0, 0, 0.25, 0.25, 0, 1))


def test_the_expert_is_pushed_up_beside_a_rollout_that_failed():
    """The slopes of both terms by hand: the failure's chunks go down, the expert's goes up as after a success."""
    tokens = _by_hand(-1.0)
    total, weight = ipa_loss(tokens)
    total.backward()
    assert weight.item() == 5
    torch.testing.assert_close(tokens.logp_BT.grad, _row(-0.005, -0.005, 0, 0.25, 0.25, 0, 1))


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_imitation_survives_a_batch_whose_sampled_chunks_are_all_masked(aggregation):
    tokens = _by_hand(-1.0)
    masked = replace(tokens, logp_rollout_BT=tokens.logp_rollout_BT - 2.0)  # every ratio is e^2 = 7.4 > 5
    total, weight = ipa_loss(masked, aggregation=aggregation)
    (total / weight).backward()
    slope = -0.1 * 0.2 * 0.25 / (1 if aggregation == "seq-mean-token-sum" else 2)
    torch.testing.assert_close(tokens.logp_BT.grad, _row(slope, slope, 0, 0, 0, 0, 0))


def test_parts_of_a_batch_add_up_though_the_sampled_chunks_of_one_are_masked():
    whole, masked = _by_hand(1.0), _by_hand(-1.0)
    masked = replace(masked, logp_rollout_BT=masked.logp_rollout_BT - 2.0)
    together = ChunkTokens(*(torch.cat([a, b]) for a, b in zip(_fields(whole), _fields(masked), strict=True)))
    parts = [ipa_loss(request) for request in (whole, masked)]
    for got, *wanted in zip(ipa_loss(together), *parts, strict=True):
        torch.testing.assert_close(got, sum(wanted))


def _fields(tokens: ChunkTokens) -> list[torch.Tensor]:
    return [getattr(tokens, name) for name in tokens.__dataclass_fields__]


def test_a_chunk_the_engines_disagree_on_is_cut_from_sum_and_weight():
    tokens = _by_hand(1.0)
    far = tokens.logp_rollout_BT.clone()
    far[0, 6] -= 2.0  # ratio e^2 = 7.4 > 5
    total, weight = ipa_loss(replace(tokens, logp_rollout_BT=far), imitation_weight=0.0)
    total.backward()
    assert weight.item() == 2
    torch.testing.assert_close(tokens.logp_BT.grad, _row(0, 0, 0, -0.5, -0.5, 0, 0))
    assert ipa_loss(replace(tokens, logp_rollout_BT=far), mismatch_bound=None, imitation_weight=0.0)[1].item() == 3


def _random(*, one_chunk: bool = False) -> ChunkTokens:
    dice = torch.Generator().manual_seed(5)
    old, shift, near = torch.randn(3, 8, 10, generator=dice, dtype=torch.float64).unbind()
    mask = torch.rand(8, 10, generator=dice) < 0.7
    chunks = mask.long() - 1 if one_chunk else chunk_numbers(mask)
    returns = torch.randn(8, 1, generator=dice, dtype=torch.float64).expand(8, 10)
    nobody = torch.zeros_like(mask)
    return ChunkTokens(-old.abs() + shift * 0.2, -old.abs(), -old.abs() + near * 0.1, returns, chunks, mask, nobody)


def test_with_one_chunk_and_no_discount_it_is_reinforce_on_trajectories_with_topr_ratios():
    """gamma 1 gives every chunk the final reward; one chunk gives the ratio of the sequence (ALE, eq. 3)."""
    tokens = _random(one_chunk=True)
    ratios = sequence_ratios(tokens.logp_BT, tokens.logp_old_BT, tokens.sampled_BT)
    baseline = topr_losses(tokens.logp_BT, tokens.returns_BT, ratios)
    expected = aggregated(baseline, tokens.sampled_BT, "token-mean", max_response_tokens=1)
    for got, wanted in zip(ipa_loss(tokens, mismatch_bound=None), expected, strict=True):
        assert torch.equal(got, wanted)


def test_on_policy_one_chunk_is_bit_identical_to_reinforce():
    tokens = _random(one_chunk=True)
    tokens = replace(tokens, logp_old_BT=tokens.logp_BT, logp_rollout_BT=tokens.logp_BT)
    reinforce = reinforce_losses(tokens.logp_BT, tokens.returns_BT)
    expected = aggregated(reinforce, tokens.sampled_BT, "token-mean", max_response_tokens=1)
    for got, wanted in zip(ipa_loss(tokens), expected, strict=True):
        assert torch.equal(got, wanted)


def test_switches_at_their_neutral_values_are_bit_identical_to_absence():
    tokens = _random()
    plain = ipa_loss(tokens, mismatch_bound=None, imitation_weight=0.0)[0]
    assert torch.equal(ipa_loss(tokens, mismatch_bound=1e9, imitation_weight=0.0)[0], plain)
    assert torch.equal(ipa_loss(tokens, mismatch_bound=None, imitation_weight=0.7)[0], plain)  # no expert chunk
    with_expert = replace(tokens, expert_BT=~tokens.sampled_BT & torch.ones(8, 10).bool())
    assert torch.equal(ipa_loss(with_expert, mismatch_bound=None, imitation_weight=0.0)[0], plain)


def test_a_chunk_weighs_all_its_tokens_alike():
    tokens = _random()
    logp = tokens.logp_BT.clone().requires_grad_()
    tokens = replace(tokens, logp_BT=logp)
    chunk_reinforcement_losses(tokens).where(tokens.sampled_BT, 0.0).sum().backward()
    for row in range(8):
        for chunk in tokens.chunk_BT[row].unique().tolist():
            slopes = logp.grad[row][(tokens.chunk_BT[row] == chunk) & tokens.sampled_BT[row]]
            assert torch.equal(slopes, slopes[:1].expand_as(slopes))


def test_imitation_pushes_the_expert_up_the_more_the_likelier_it_already_is():
    logp = _row(-3.0, -0.1).requires_grad_()
    everything = torch.ones(1, 2, dtype=torch.bool)
    tokens = ChunkTokens(
        logp, logp.detach(), logp.detach(), _row(1, 1), torch.tensor([[0, 1]]), ~everything, everything
    )
    imitation_losses(tokens).sum().backward()
    assert logp.grad[0, 1] < logp.grad[0, 0] < 0


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_a_batch_without_a_sampled_chunk_has_weight_0(aggregation):
    tokens = _random()
    total, weight = ipa_loss(replace(tokens, sampled_BT=torch.zeros(8, 10).bool()), aggregation=aggregation)
    assert (total.item(), weight.item()) == (0, 0)
