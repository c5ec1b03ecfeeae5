"""Our numbers are those of verl 0.9.1, on random ragged batches, with the switches that remove deliberate differences.

Needs a venv of its own, see "Agreement with verl" in docs/algorithms.md; elsewhere these tests skip.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine.algorithms.aggregation import aggregated
from engine.algorithms.covariance import (
    CovarianceBounds,
    covariance_keep,
    highest_covariances,
    kl_cov_losses,
    token_covariances,
)
from engine.algorithms.credit import group_relative_advantages, leave_one_out_advantages, whitened_advantages
from engine.algorithms.gae import critic_loss, generalised_advantages
from engine.algorithms.kl import kl_to_reference
from engine.algorithms.losses import objective_for
from engine.algorithms.objectives import PolicyTokens, clipped_surrogate
from engine.algorithms.ratios import token_ratios
from engine.algorithms.weighted_gradients import cispo_losses
from engine.algorithms.whitening import whitened
from engine.spec.objective import Gspo

pytestmark = pytest.mark.verl
every_seed = pytest.mark.parametrize("seed", range(5))
AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
P, G, T = 4, 5, 17
LOW, HIGH, DUAL = 0.2, 0.28, 3.0


@pytest.fixture(scope="module")
def verl() -> Any:
    return pytest.importorskip("verl.trainer.ppo.core_algos")


@pytest.fixture
def batch(seed: int) -> SimpleNamespace:
    """P * G ragged sequences; the last token is always sampled and carries the reward."""
    dice = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=dice, dtype=torch.float64)

    rows = P * G
    mask = torch.rand(rows, T, generator=dice) < 0.6
    mask[:, -1] = True
    rewards = noise(P, G)
    at_the_end = torch.zeros(rows, T, dtype=torch.float64)
    at_the_end[:, -1] = rewards.reshape(-1)
    old = -noise(rows, T).abs()
    return SimpleNamespace(
        rewards=rewards,
        at_the_end=at_the_end,
        prompts=np.repeat(np.arange(P), G),
        mask=mask,
        m=mask.double(),
        counts=mask.sum(1).reshape(P, G),
        old=old,
        logp=old + noise(rows, T) * 0.3,
        values=noise(rows, T),
        dense=noise(rows, T) * mask,
        advantages=1.5 * noise(rows, 1).expand(rows, T).clone(),
    )


def _spread(advantages_PG: torch.Tensor, batch: SimpleNamespace) -> torch.Tensor:
    return advantages_PG.reshape(-1, 1) * batch.m


def _same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@every_seed
def test_group_credit(verl, batch):
    b = batch
    grpo, _ = verl.compute_grpo_outcome_advantage(b.at_the_end.clone(), b.m, b.prompts)
    _same(_spread(group_relative_advantages(b.rewards, unbiased_std=True), b), grpo)
    dr_grpo, _ = verl.compute_grpo_outcome_advantage(
        b.at_the_end.clone(), b.m, b.prompts, norm_adv_by_std_in_grpo=False
    )
    _same(_spread(group_relative_advantages(b.rewards, scale_by_std=False), b), dr_grpo)
    rloo, _ = verl.compute_rloo_outcome_advantage(b.at_the_end.clone(), b.m, b.prompts)
    _same(_spread(leave_one_out_advantages(b.rewards), b), rloo)


@every_seed
def test_reinforce_pp(verl, batch):
    b, switches = batch, {"weights_PG": batch.counts, "unbiased_std": True}
    theirs, _ = verl.compute_reinforce_plus_plus_outcome_advantage(
        b.at_the_end.clone(), b.m, config=SimpleNamespace(gamma=1.0)
    )
    _same(_spread(whitened_advantages(b.rewards, **switches), b), theirs)
    theirs, _ = verl.compute_reinforce_plus_plus_baseline_outcome_advantage(b.at_the_end.clone(), b.m, b.prompts)
    _same(_spread(whitened_advantages(b.rewards, group_baseline=True, **switches), b), theirs)


@every_seed
def test_gae_and_the_critic(verl, batch):
    b = batch
    advantages, returns = verl.compute_gae_advantage_return(b.dense, b.values, b.m, 0.97, 0.9)
    ours, targets = generalised_advantages(b.dense, b.values, b.mask, gamma=0.97, lam=0.9)
    _same(whitened(ours, b.mask, unbiased_std=True), advantages * b.m)
    _same(targets, returns * b.m)
    theirs, _ = verl.compute_value_loss(b.logp, targets, b.values, b.m, 0.5)
    total, weight = critic_loss(b.logp, b.values, targets, b.mask, clip=0.5)
    _same(total / weight, theirs)


@every_seed
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_divergences(verl, batch, estimator):
    _same(kl_to_reference(batch.logp, batch.old, estimator), verl.kl_penalty_forward(batch.logp, batch.old, estimator))


def _config() -> Any:
    """What verl's policy losses read, with every covariance between the bounds dropped, so that no draw differs."""
    from verl.workers.config import ActorConfig

    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=LOW, clip_ratio_low=LOW,
        clip_ratio_high=HIGH, clip_ratio_c=DUAL,
    )  # fmt: skip
    clip_cov = {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.5, "clip_cov_ub": 2.0}
    kl_cov = {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7}
    for name, value in (clip_cov | kl_cov).items():
        object.__setattr__(config.policy_loss, name, value)
    return config


def _clipped(logp: torch.Tensor, b: SimpleNamespace, dual_clip: float | None = None) -> torch.Tensor:
    return clipped_surrogate(token_ratios(logp, b.old), b.advantages, clip_low=LOW, clip_high=HIGH, dual_clip=dual_clip)


def _covariance_clipped(logp: torch.Tensor, b: SimpleNamespace) -> torch.Tensor:
    """verl takes no token that the ratio clip has already cut."""
    ratios = token_ratios(logp, b.old).detach()
    cut = -b.advantages * ratios.clamp(1 - LOW, 1 + HIGH) > -b.advantages * ratios
    covariances = token_covariances(logp, b.advantages, b.mask)
    keep = covariance_keep(covariances, b.mask & ~cut, CovarianceBounds(0.5, 2.0), torch.Generator(), clip_share=1.0)
    return _clipped(logp, b).where(keep, 0.0)


def _kl_cov(logp: torch.Tensor, b: SimpleNamespace) -> torch.Tensor:
    chosen = highest_covariances(token_covariances(logp, b.advantages, b.mask), b.mask, share=0.1)
    return kl_cov_losses(logp, b.old, b.advantages, token_ratios(logp, b.old), chosen, beta=0.7)


TOKEN_LOSSES: dict[str, Callable[[torch.Tensor, SimpleNamespace], torch.Tensor]] = {
    "vanilla": lambda logp, b: _clipped(logp, b, DUAL),
    "cispo": lambda logp, b: cispo_losses(logp, b.advantages, token_ratios(logp, b.old), clip_low=LOW, clip_high=HIGH),
    "clip_cov": _covariance_clipped,
    "kl_cov": _kl_cov,
}


@every_seed
@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("name", [*TOKEN_LOSSES, "gspo"])
def test_policy_losses_and_their_gradients(verl, batch, name, how):
    b = batch
    ours, theirs = (b.logp.clone().requires_grad_() for _ in range(2))
    if name == "gspo":
        tokens = PolicyTokens(ours, b.old, b.advantages, b.mask)
        gspo = Gspo(clip_low=LOW, clip_high=HIGH, aggregation=how)
        total, weight = objective_for(gspo, max_response_tokens=T).loss(tokens)
    else:
        total, weight = aggregated(TOKEN_LOSSES[name](ours, b), b.mask, how, max_response_tokens=T)
    loss = verl.get_policy_loss_fn(name)(b.old, theirs, b.advantages, b.m, how, _config())[0]
    _same(total / weight, loss)
    (total / weight).backward()
    loss.backward()
    _same(ours.grad * b.m, theirs.grad * b.m)
