"""What an update says about itself, observed in micro-batches and divided once.  Shapes: B sequences, T, N tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from engine.algorithms.mismatch import MismatchStatistics, mismatch_statistics
from engine.algorithms.objectives import PolicyObjective, PolicyTokens
from engine.algorithms.ratios import kl_k3, token_ratios


@dataclass(frozen=True)
class UpdateObservation:
    """What is counted in one micro-batch, over its sampled tokens."""

    tokens: int
    sums: dict[str, float]
    maxima: dict[str, float]
    mismatch: MismatchStatistics


@torch.no_grad()
def update_observation(objective: PolicyObjective, tokens: PolicyTokens, entropy_N: Tensor) -> UpdateObservation | None:
    """``entropy_N`` is that of the sampled tokens; None where there is no sampled token."""
    mask_BT = tokens.mask_BT
    if not mask_BT.any():
        return None
    assert tokens.logp_rollout_BT is not None
    logp_N, old_N, rollout_N = tokens.logp_BT[mask_BT], tokens.logp_old_BT[mask_BT], tokens.logp_rollout_BT[mask_BT]
    ratio_BT = token_ratios(tokens.logp_old_BT, tokens.logp_rollout_BT)
    return UpdateObservation(
        tokens=len(logp_N),
        sums={
            "entropy": entropy_N.sum().item(),
            "clip_fraction": objective.clipped_BT(tokens).sum().item(),
            "kl_to_old": kl_k3(logp_N, old_N).sum().item(),
            "mismatch_kl": kl_k3(old_N, rollout_N).sum().item(),
            "ratio_mean": token_ratios(logp_N, old_N).sum().item(),
        },
        maxima={
            "ratio_max": token_ratios(logp_N, old_N).max().item(),
            "mismatch_max": (old_N - rollout_N).abs().max().item(),
        },
        mismatch=mismatch_statistics(ratio_BT, mask_BT, objective.trained_BT(tokens)),
    )


def update_metrics(observations: Sequence[UpdateObservation | None]) -> dict[str, float]:
    """Means over the sampled tokens of a whole update, and extremes.

    entropy; clip_fraction (whose gradient was cut off, or made smaller by a bound); kl_to_old (k3), ratio_mean
    and ratio_max of the policy against the one before the step; of old against rollout: mismatch_kl (k3),
    mismatch_max (largest absolute difference of log-probs), mismatch_ratio_mean, mismatch_ratio_max, mismatch_masked
    (the share that the mismatch mask cut); tokens.  Only ``tokens`` where there is none.
    """
    seen = [observation for observation in observations if observation is not None]
    if not seen:
        return {"tokens": 0.0}
    tokens = sum(observation.tokens for observation in seen)
    mismatch = reduce(add, (observation.mismatch for observation in seen), MismatchStatistics(0.0, 0.0, 0, 0))
    return {
        **{name: sum(observation.sums[name] for observation in seen) / tokens for name in seen[0].sums},
        **dict(_maxima(seen)),
        "mismatch_ratio_mean": mismatch.mean,
        "mismatch_ratio_max": mismatch.ratio_max,
        "mismatch_masked": mismatch.masked_share,
        "tokens": float(tokens),
    }


def _maxima(seen: Sequence[UpdateObservation]) -> Iterator[tuple[str, float]]:
    """No extreme is below 0."""
    for name in seen[0].maxima:
        yield name, max(0.0, *(observation.maxima[name] for observation in seen))
