"""What an update says about itself, summed over micro-batches and divided once."""

from collections import defaultdict

import torch
from torch import Tensor

from engine.algorithms.mismatch import MismatchStatistics, mismatch_statistics
from engine.algorithms.objectives import PolicyObjective, PolicyTokens
from engine.algorithms.ratios import kl_k3, token_ratios


class UpdateMetrics:
    """Means over the sampled tokens of a whole update, and extremes.

    entropy; clip_fraction (whose gradient was cut off, or made smaller by a bound); kl_to_old (k3), ratio_mean
    and ratio_max of the policy against the one before the step; kl_to_reference (k3), if the recipe has a
    reference; of old against rollout: mismatch_kl (k3), mismatch_max (largest absolute difference of log-probs),
    mismatch_ratio_mean, mismatch_ratio_max, mismatch_masked (the share that the mismatch mask cut); tokens.
    Only ``tokens`` where there is none.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._extremes: dict[str, float] = {"ratio_max": 0.0, "mismatch_max": 0.0}
        self._mismatch = MismatchStatistics(0.0, 0.0, 0, 0)
        self._tokens = 0

    @torch.no_grad()
    def add(self, objective: PolicyObjective, tokens: PolicyTokens, entropy_N: Tensor) -> None:
        """``entropy_N`` is that of the masked tokens."""
        mask_BT = tokens.mask_BT
        if not mask_BT.any():
            return
        assert tokens.logp_rollout_BT is not None
        logp_N, old_N, rollout_N = tokens.logp_BT[mask_BT], tokens.logp_old_BT[mask_BT], tokens.logp_rollout_BT[mask_BT]
        self._tokens += len(logp_N)
        self._sums["entropy"] += entropy_N.sum().item()
        self._sums["clip_fraction"] += objective.clipped_BT(tokens).sum().item()
        self._sums["kl_to_old"] += kl_k3(logp_N, old_N).sum().item()
        self._sums["mismatch_kl"] += kl_k3(old_N, rollout_N).sum().item()
        self._sums["ratio_mean"] += token_ratios(logp_N, old_N).sum().item()
        self._at_least("ratio_max", token_ratios(logp_N, old_N).max().item())
        self._at_least("mismatch_max", (old_N - rollout_N).abs().max().item())
        if tokens.logp_reference_BT is not None:
            self._sums["kl_to_reference"] += kl_k3(tokens.logp_reference_BT[mask_BT], logp_N).sum().item()
        ratio_BT = token_ratios(tokens.logp_old_BT, tokens.logp_rollout_BT)
        self._mismatch += mismatch_statistics(ratio_BT, mask_BT, objective.trained_BT(tokens))

    def values(self) -> dict[str, float]:
        if not self._tokens:
            return {"tokens": 0.0}
        means = {name: total / self._tokens for name, total in self._sums.items()}
        mismatch = {
            "mismatch_ratio_mean": self._mismatch.mean,
            "mismatch_ratio_max": self._mismatch.ratio_max,
            "mismatch_masked": self._mismatch.masked_share,
        }
        return {**means, **self._extremes, **mismatch, "tokens": float(self._tokens)}

    def _at_least(self, name: str, value: float) -> None:
        self._extremes[name] = max(self._extremes[name], value)
