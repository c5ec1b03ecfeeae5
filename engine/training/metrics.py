"""What an update says about itself, summed over micro-batches and divided once."""

from collections import defaultdict

import torch
from torch import Tensor

from engine.algorithms.objectives import PolicyObjective, PolicyTokens
from engine.algorithms.ratios import kl_k3, token_ratios


class UpdateMetrics:
    """Means over sampled tokens of a whole update, and extremes."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._extremes: dict[str, float] = {"ratio_max": 0.0, "mismatch_max": 0.0}
        self._tokens = 0

    @torch.no_grad()
    def add(self, objective: PolicyObjective, tokens: PolicyTokens, rollout_logp_BT: Tensor, entropy_N: Tensor) -> None:
        mask_BT = tokens.mask_BT
        if not mask_BT.any():
            return
        logp_N, old_N, rollout_N = tokens.logp_BT[mask_BT], tokens.logp_old_BT[mask_BT], rollout_logp_BT[mask_BT]
        self._tokens += len(logp_N)
        self._sums["entropy"] += entropy_N.sum().item()
        self._sums["clip_fraction"] += objective.clipped_BT(tokens).sum().item()
        self._sums["kl_to_old"] += kl_k3(logp_N, old_N).sum().item()
        self._sums["mismatch_kl"] += kl_k3(old_N, rollout_N).sum().item()
        self._sums["ratio_mean"] += token_ratios(logp_N, old_N).sum().item()
        self._at_least("ratio_max", token_ratios(logp_N, old_N).max().item())
        self._at_least("mismatch_max", (old_N - rollout_N).abs().max().item())

    def values(self) -> dict[str, float]:
        means = {name: total / self._tokens for name, total in self._sums.items()}
        return {**means, **self._extremes, "tokens": float(self._tokens)}

    def _at_least(self, name: str, value: float) -> None:
        self._extremes[name] = max(self._extremes[name], value)
