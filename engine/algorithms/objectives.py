"""Objectives: what a policy update minimises.

Shapes: B sequences, T tokens.  An objective returns ``(sum, weight)``, see aggregation.py.
The trainer calls ``objective_for`` and never learns which objective it got.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.algorithms.aggregation import aggregated
from engine.algorithms.ratios import token_ratios
from engine.spec.recipe import Clipped, Objective


@dataclass(frozen=True)
class PolicyTokens:
    """A batch as an objective sees it; entries outside ``mask_BT`` are arbitrary but finite."""

    logp_BT: Tensor
    """Under the parameters being optimised, with gradient."""
    logp_old_BT: Tensor
    """Under the policy that was frozen before the update."""
    advantages_BT: Tensor
    mask_BT: Tensor
    """True on the tokens that the policy sampled."""


class PolicyObjective(Protocol):
    def loss(self, tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
        """``(sum, weight)``."""
        ...

    def clipped_BT(self, tokens: PolicyTokens) -> Tensor:
        """Which tokens' gradient the objective has cut off."""
        ...


def objective_for(objective: Objective, *, max_response_tokens: int) -> PolicyObjective:
    return ClippedSurrogate(objective, max_response_tokens)


@dataclass(frozen=True)
class ClippedSurrogate:
    spec: Clipped
    max_response_tokens: int
    """The constant of ``seq-mean-token-sum-norm``."""

    def loss(self, tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
        losses_BT = clipped_surrogate(
            token_ratios(tokens.logp_BT, tokens.logp_old_BT),
            tokens.advantages_BT,
            clip_low=self.spec.clip_low,
            clip_high=self.spec.clip_high,
            dual_clip=self.spec.dual_clip,
        )
        return aggregated(
            losses_BT, tokens.mask_BT, self.spec.aggregation, max_response_tokens=self.max_response_tokens
        )

    def clipped_BT(self, tokens: PolicyTokens) -> Tensor:
        ratio_BT, advantages_BT = token_ratios(tokens.logp_BT, tokens.logp_old_BT), tokens.advantages_BT
        cut_BT = (advantages_BT > 0) & (ratio_BT > 1 + self.spec.clip_high)
        cut_BT |= (advantages_BT < 0) & (ratio_BT < 1 - self.spec.clip_low)
        if self.spec.dual_clip is not None:
            cut_BT |= (advantages_BT < 0) & (ratio_BT > self.spec.dual_clip)
        return cut_BT & tokens.mask_BT


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """Loss per token, -min(r A, clip(r, 1 - low, 1 + high) A)  (PPO, arXiv:1707.06347, eq. 7).

    The two clips apart are DAPO's (arXiv:2503.14476, eq. 8).  ``dual_clip`` c bounds the loss of a
    negative advantage by -c A (arXiv:1912.09729, eq. 5), where the ratio alone has no bound.
    """
    clipped_ratio = ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(-ratio * advantages, -clipped_ratio * advantages)
    if dual_clip is None:
        return losses
    return torch.where(advantages < 0, torch.minimum(losses, -dual_clip * advantages), losses)
