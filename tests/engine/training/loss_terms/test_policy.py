"""The terms on the policy's own tokens: what each adds to the sum and to the weight of one batch."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from engine.algorithms.aggregation import aggregated
from engine.algorithms.kl import kl_to_reference
from engine.algorithms.losses import ExpertImitation, objective_for
from engine.spec.objective import Clipped, Gspo, Ipa, Kl, Mismatch, Objective, Topr
from engine.training.loss_terms.interface import LossTerm, PolicyOutputs
from engine.training.loss_terms.policy import ImitationLoss, KlPenalty, PolicyLoss, tokens_of
from engine.training.microbatch import MicroBatch

LONGEST = 9
OBJECTIVES: list[Objective] = [Clipped(), Gspo(), Topr(ratio="chunk"), Ipa(mismatch_bound=1.2)]
every = pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)


def micro_batch(rows: int = 20, *, mismatch: float = 1.0) -> tuple[MicroBatch, PolicyOutputs]:
    dice = torch.Generator().manual_seed(0)

    def noise() -> torch.Tensor:
        return torch.randn(rows, LONGEST, generator=dice, dtype=torch.float64)

    mask = torch.rand(rows, LONGEST, generator=dice) < 0.6
    old = -noise().abs() - 2
    batch = MicroBatch(
        rows=list(range(rows)),
        token_ids_BT=torch.zeros(rows, LONGEST, dtype=torch.long),
        mask_BT=mask,
        advantages_BT=noise(),
        rollout_logp_BT=old + mismatch * noise(),
        old_logp_BT=old,
    )
    logp = (old + noise() * 0.4).requires_grad_()
    scored = int(batch.scored_BT.sum())
    return batch, PolicyOutputs(logp, torch.ones(scored), old + noise())


def slope(term: LossTerm[PolicyOutputs], batch: MicroBatch, outputs: PolicyOutputs) -> torch.Tensor:
    logp = outputs.logp_BT.detach().clone().requires_grad_()
    term.loss(batch, replace(outputs, logp_BT=logp)).backward()
    assert logp.grad is not None
    return logp.grad


def parts_of(batch: MicroBatch, outputs: PolicyOutputs, cut: int) -> list[tuple[MicroBatch, PolicyOutputs]]:
    """The first rows, and the others."""
    parts = []
    for rows in (slice(0, cut), slice(cut, None)):
        columns = {name: value[rows] for name, value in vars(batch).items() if value is not None}
        entropy_N = torch.ones(int(columns["mask_BT"].sum()))
        assert outputs.reference_logp_BT is not None
        parts.append(
            (MicroBatch(**columns), PolicyOutputs(outputs.logp_BT[rows], entropy_N, outputs.reference_logp_BT[rows]))
        )
    return parts


def terms_of(objective: Objective) -> Sequence[LossTerm[PolicyOutputs]]:
    loss = objective_for(objective, max_response_tokens=LONGEST)
    terms: list[LossTerm[PolicyOutputs]] = [PolicyLoss(loss), KlPenalty(Kl(), loss, objective.aggregation, LONGEST)]
    return [*terms, ImitationLoss(ExpertImitation(objective, LONGEST))] if isinstance(objective, Ipa) else terms


@every
def test_sums_and_weights_of_parts_add_up_to_those_of_the_whole(objective: Objective) -> None:
    batch, outputs = micro_batch()
    for term in terms_of(objective):
        parts = parts_of(batch, outputs, 7)
        assert term.weight(batch) == sum(term.weight(part) for part, _ in parts)
        torch.testing.assert_close(sum(term.loss(*part) for part in parts), term.loss(batch, outputs))


@every
def test_the_weight_is_known_before_the_network_has_run(objective: Objective) -> None:
    """It is that of the objective's own loss, whatever the present log-probs are."""
    batch, outputs = micro_batch()
    loss = objective_for(objective, max_response_tokens=LONGEST)
    tokens = int(loss.trained_BT(tokens_of(batch, outputs)).sum())
    assert tokens > 0
    weight = PolicyLoss(loss).weight(batch)
    assert weight == loss.loss(tokens_of(batch, outputs))[1]


@every
def test_the_penalty_is_added_on_every_trained_token_and_not_to_the_weight(objective: Objective) -> None:
    batch, outputs = micro_batch()
    loss = objective_for(objective, max_response_tokens=LONGEST)
    penalty = KlPenalty(Kl(beta=0.3, estimator="k2"), loss, objective.aggregation, LONGEST)
    expected, _ = aggregated(
        0.3 * kl_to_reference(outputs.logp_BT, outputs.reference_logp_BT, "k2"),
        loss.trained_BT(tokens_of(batch, outputs)),
        objective.aggregation,
        max_response_tokens=LONGEST,
    )
    assert torch.equal(penalty.loss(batch, outputs), expected)
    assert penalty.weight(batch) == 0


def test_a_token_whose_loss_is_dropped_keeps_its_penalty() -> None:
    batch, outputs = micro_batch()
    kept = torch.rand(batch.mask_BT.shape, generator=torch.Generator().manual_seed(1)) < 0.7
    dropping, loss = replace(batch, kept_BT=kept), objective_for(Clipped(), max_response_tokens=LONGEST)
    assert not slope(PolicyLoss(loss), dropping, outputs)[~kept].any()
    penalty = slope(KlPenalty(Kl(beta=0.5), loss, "token-mean", LONGEST), dropping, outputs)
    assert (penalty[batch.mask_BT & ~kept] != 0).all()


def test_what_the_mismatch_mask_cuts_is_not_penalised() -> None:
    batch, outputs = micro_batch()
    masking = objective_for(Clipped(), max_response_tokens=LONGEST, mismatch=Mismatch(mask="token", mask_bound=1.2))
    trained = masking.trained_BT(tokens_of(batch, outputs))
    assert 0 < trained.sum() < batch.mask_BT.sum()
    penalty = slope(KlPenalty(Kl(beta=0.5), masking, "token-mean", LONGEST), batch, outputs)
    assert torch.equal(penalty != 0, trained)


def test_the_reported_divergence_is_a_mean_over_the_sampled_tokens_of_all_micro_batches() -> None:
    """k3 of a difference d of log-probs is e^d - 1 - d: of 0 it is 0, of ln 2 it is 1 - ln 2."""
    batch, outputs = micro_batch()
    term = KlPenalty(Kl(), objective_for(Clipped(), max_response_tokens=LONGEST), "token-mean", LONGEST)
    doubled = replace(outputs, reference_logp_BT=outputs.logp_BT.detach() + torch.tensor(2.0).log())
    same = replace(outputs, reference_logp_BT=outputs.logp_BT.detach())
    seen = [term.observed(batch, doubled), term.observed(batch, same)]
    assert term.metrics(seen)["kl_to_reference"] == pytest.approx((1 - 0.6931472) / 2, abs=1e-6)
    assert term.metrics([]) == {}
