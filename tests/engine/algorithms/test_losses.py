"""From a recipe's objective to a loss: the order of masks, weights and drops, and what counts as clipped."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.algorithms.chunks import chunk_numbers
from engine.algorithms.losses import objective_for
from engine.algorithms.objectives import PolicyObjective, PolicyTokens
from engine.spec.objective import (
    Cispo,
    Clipped,
    CovarianceKl,
    Dpo,
    Gspo,
    Ipa,
    Mismatch,
    NoObjective,
    Objective,
    Tis,
    Topr,
)

EVERY: dict[str, Objective] = {
    "clipped": Clipped(dual_clip=1.5),
    "gspo": Gspo(clip_low=0.05, clip_high=0.05),
    "cispo": Cispo(clip_low=0.3),
    "tis": Tis(ratio="token"),
    "topr": Topr(ratio="chunk"),
    "ipa": Ipa(mismatch_bound=None),
}
every = pytest.mark.parametrize("objective", EVERY.values(), ids=EVERY)


def tokens(rows: int = 30, length: int = 9, seed: int = 0) -> PolicyTokens:
    dice = torch.Generator().manual_seed(seed)

    def noise() -> torch.Tensor:
        return torch.randn(rows, length, generator=dice, dtype=torch.float64)

    mask = torch.rand(rows, length, generator=dice) < 0.6
    old = -noise().abs() - 2
    return PolicyTokens(
        logp_BT=(old + noise() * 0.4).requires_grad_(),
        logp_old_BT=old,
        advantages_BT=noise(),
        mask_BT=mask,
        logp_rollout_BT=old + noise(),
        logp_reference_BT=old + noise(),
        chunk_BT=chunk_numbers(mask),
    )


def made(objective: Objective, **parts: Any) -> PolicyObjective:
    return objective_for(objective, max_response_tokens=9, **parts)


def slopes(objective: PolicyObjective, given: PolicyTokens) -> torch.Tensor:
    given = replace(given, logp_BT=given.logp_BT.detach().clone().requires_grad_())
    objective.loss(given)[0].backward()
    return given.logp_BT.grad


@every
def test_a_correction_that_is_off_changes_no_bit(objective: Objective) -> None:
    given = tokens()
    with_it = made(objective, mismatch=Mismatch()).loss(given)
    assert all(map(torch.equal, with_it, made(objective).loss(given)))


@pytest.mark.parametrize("size", ["token", "chunk", "sequence"])
def test_what_the_mismatch_mask_cuts_is_as_if_it_had_not_been_sampled(size: str) -> None:
    given = tokens()
    masking = made(Clipped(), mismatch=Mismatch(mask=size, mask_bound=1.2))
    left = masking.trained_BT(given)
    assert 0 < left.sum() < given.mask_BT.sum()
    expected = made(Clipped()).loss(replace(given, mask_BT=left))
    assert all(map(torch.equal, masking.loss(given), expected))


@pytest.mark.parametrize("objective", [Topr(), Tis(), Topr(ratio="chunk"), Gspo()], ids=lambda one: one.kind)
def test_a_token_that_the_mismatch_mask_cuts_still_counts_in_the_ratio_of_its_sequence(objective: Objective) -> None:
    """ALE, eq. 4: rho(tau) is over all of tau, m_k over what is summed."""
    given, summed = tokens(), objective.model_copy(update={"aggregation": "seq-mean-token-sum"})
    masking = made(summed, mismatch=Mismatch(mask="token", mask_bound=1.2))
    left = masking.trained_BT(given)
    assert 0 < left.sum() < given.mask_BT.sum()
    torch.testing.assert_close(slopes(masking, given), slopes(made(summed), given).where(left, 0.0))


def test_mismatch_weights_multiply_the_losses_and_not_the_weight() -> None:
    given = tokens()
    doubled = replace(given, logp_rollout_BT=given.logp_old_BT - math.log(2))
    weighing = made(Clipped(), mismatch=Mismatch(weight="token", weight_bound=1.5))
    total, weight = weighing.loss(doubled)
    plain, plain_weight = made(Clipped()).loss(doubled)
    assert weight == plain_weight
    torch.testing.assert_close(total, 1.5 * plain)


def test_a_dropped_token_loses_its_loss_and_keeps_its_place() -> None:
    given = tokens()
    kept = torch.rand(given.mask_BT.shape, generator=torch.Generator().manual_seed(1)) < 0.7
    dropping = replace(given, kept_BT=kept)
    assert made(Clipped()).loss(dropping)[1] == made(Clipped()).loss(given)[1]
    slope = slopes(made(Clipped()), dropping)
    assert torch.equal(slope, slopes(made(Clipped()), given).where(kept, 0.0))


def test_clipped_tokens_are_those_without_a_gradient_also_when_boosted_or_dropped() -> None:
    given = tokens()
    flag = torch.rand(given.mask_BT.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    for objective, columns in (
        (made(Clipped(dual_clip=1.5)), {}),
        (made(Clipped(dual_clip=1.5), boosted_clip_high=0.6), {"boosted_BT": flag}),
        (made(Clipped()), {"kept_BT": flag}),
        (made(Gspo(clip_low=0.05, clip_high=0.05)), {}),
        (made(Clipped(), mismatch=Mismatch(mask="token", mask_bound=2.0)), {}),
    ):
        marked = replace(given, **columns)
        cut, trained = objective.clipped_BT(marked), objective.trained_BT(marked)
        assert 0 < cut.sum() < trained.sum()
        assert torch.equal((slopes(objective, marked) == 0) & trained, cut)


@pytest.mark.parametrize("name", ["cispo", "tis", "topr", "ipa"])
def test_clipped_tokens_are_those_whose_weight_was_cut(name: str) -> None:
    """Per token -w A / N with w the ratio where nothing is cut; so w tells who was."""
    given, objective = tokens(), made(EVERY[name])
    total, weight = objective.loss(given)
    slope = slopes(objective, given)
    weights = -(slope / given.advantages_BT)
    cut = objective.clipped_BT(given)
    assert 0 < cut.sum() < given.mask_BT.sum()
    bounds = {"cispo": (0.7, 1.28), "tis": (1.0,), "topr": (1.0,), "ipa": (1.0,)}[name]
    assert all(min(abs(w - bound) for bound in bounds) < 1e-9 for w in weights[cut].tolist())
    assert not (given.mask_BT & cut & (slope == 0)).any()


def test_the_wider_clip_is_for_stripped_tokens_with_a_positive_advantage_only() -> None:
    given = tokens()
    all_stripped = replace(given, boosted_BT=torch.ones_like(given.mask_BT))
    boosted, plain = made(Clipped(), boosted_clip_high=0.6), made(Clipped())
    newly = (slopes(boosted, all_stripped) != 0) & (slopes(plain, given) == 0) & given.mask_BT
    ratio = (given.logp_BT - given.logp_old_BT).exp()
    assert torch.equal(newly, given.mask_BT & (given.advantages_BT > 0) & (ratio > 1.28) & (ratio <= 1.6))
    nobody = replace(given, boosted_BT=torch.zeros_like(given.mask_BT))
    assert torch.equal(boosted.loss(nobody)[0], plain.loss(given)[0])


def test_kl_cov_penalises_chosen_tokens_and_clips_none() -> None:
    given = tokens()
    chosen = torch.rand(given.mask_BT.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    objective = made(Clipped(covariance=CovarianceKl(share=0.3, beta=0.7)))
    marked = replace(given, penalised_BT=chosen)
    ratio = (given.logp_BT - given.logp_old_BT).exp()
    penalty = 0.7 * (given.logp_BT - given.logp_old_BT).abs()
    expected = (-ratio * given.advantages_BT + penalty.where(chosen, 0.0))[given.mask_BT].sum()
    torch.testing.assert_close(objective.loss(marked)[0], expected)
    assert not objective.clipped_BT(marked).any()


STALE = {"tis": Tis(), "topr": Topr(), "ipa": Ipa(mismatch_bound=None)}


@pytest.mark.parametrize("name", STALE)
def test_ratios_of_stale_rollouts_are_to_the_policy_that_sampled(name: str) -> None:
    """At a step's first update: log-probs of before it are the present ones, and the tokens were e times likelier."""
    given = tokens()
    assert given.logp_rollout_BT is not None
    before = replace(given, logp_old_BT=given.logp_BT.detach(), logp_rollout_BT=given.logp_BT.detach() + 1)
    sampled_now = replace(before, logp_rollout_BT=given.logp_BT.detach())
    fresh, stale = made(STALE[name]), made(STALE[name], stale=True)
    torch.testing.assert_close(slopes(fresh, before), slopes(fresh, sampled_now), rtol=0, atol=0)
    torch.testing.assert_close(slopes(stale, sampled_now), slopes(fresh, sampled_now), rtol=0, atol=0)
    weighed = slopes(stale, before) / slopes(fresh, before)
    bounded_BT = given.mask_BT & ((given.advantages_BT <= 0) if name != "tis" else True) & (given.advantages_BT != 0)
    others_BT = given.mask_BT & ~bounded_BT & (given.advantages_BT != 0)
    torch.testing.assert_close(weighed[bounded_BT], torch.full_like(weighed[bounded_BT], math.exp(-1)))
    torch.testing.assert_close(weighed[others_BT], torch.ones_like(weighed[others_BT]))
    likelier = replace(before, logp_rollout_BT=given.logp_BT.detach() - 1)
    assert stale.clipped_BT(likelier).any()
    assert not fresh.clipped_BT(likelier).any()


@pytest.mark.parametrize("name", STALE)
def test_whom_the_ratios_compare_with_may_be_chosen(name: str) -> None:
    given = tokens()
    old, rollout = (STALE[name].model_copy(update={"ratio_to": to}) for to in ("old", "rollout"))
    fresh, stale = slopes(made(STALE[name]), given), slopes(made(STALE[name], stale=True), given)
    for is_stale in (False, True):
        assert torch.equal(slopes(made(old, stale=is_stale), given), fresh)
        assert torch.equal(slopes(made(rollout, stale=is_stale), given), stale)
    assert not torch.equal(fresh, stale)


@pytest.mark.parametrize("name", ["tis", "topr"])
def test_beside_mismatch_weights_nothing_is_corrected_twice(name: str) -> None:
    given, weights = tokens(), Mismatch(weight="token")
    fresh = slopes(made(STALE[name], mismatch=weights), given)
    assert torch.equal(slopes(made(STALE[name], mismatch=weights, stale=True), given), fresh)


def test_ipa_trains_what_its_own_mask_leaves() -> None:
    given, objective = tokens(), made(Ipa(mismatch_bound=1.2))
    left = objective.trained_BT(given)
    assert 0 < left.sum() < given.mask_BT.sum()
    assert objective.loss(given)[1] == left.sum()


@pytest.mark.parametrize("objective", [Dpo(), NoObjective()])
def test_what_has_no_loss_on_tokens_is_refused(objective: Objective) -> None:
    with pytest.raises(ValueError, match=objective.kind):
        made(objective)
