"""What an objective sees, and the clipped surrogate that most of them are made of.

Shapes: B sequences, T tokens.  An objective returns ``(sum, weight)``, see aggregation.py.  Which one a recipe
asks for is decided in losses.py.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class PolicyTokens:
    """A batch as an objective sees it; entries outside ``mask_BT`` are arbitrary but finite.

    What has a default is there only where the recipe needs it.
    """

    logp_BT: Tensor
    """Under the parameters being optimised, with gradient."""
    logp_old_BT: Tensor
    """Under the policy that was frozen before the update."""
    advantages_BT: Tensor
    mask_BT: Tensor
    """True on the tokens that the policy sampled."""
    logp_rollout_BT: Tensor | None = None
    """They are what the generator reported."""
    logp_reference_BT: Tensor | None = None
    """Under the policy that reinforcement began with."""
    chunk_BT: Tensor | None = None
    """The number of the chunk, -1 on tokens of none."""
    expert_BT: Tensor | None = None
    """True on prefilled tokens that are imitated; none of them is in ``mask_BT``."""
    boosted_BT: Tensor | None = None
    """True where experience was stripped, so that the upper clip is wider."""
    kept_BT: Tensor | None = None
    """False on tokens whose loss is dropped to keep entropy."""
    penalised_BT: Tensor | None = None
    """True on tokens that KL-Cov holds back."""
    trained_tokens_B: Tensor | None = None
    """How many tokens ``PolicyObjective.trained_BT`` marks in the whole trajectory of a row, of which the row may be
    one segment.  None: every row is a whole trajectory."""
    imitated_tokens_B: Tensor | None = None
    """The same of ``expert_BT``."""


class PolicyObjective(Protocol):
    def loss(self, tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
        """``(sum, weight)``."""
        ...

    def trained_BT(self, tokens: PolicyTokens) -> Tensor:
        """The sampled tokens that are left once the mismatch mask has cut its share."""
        ...

    def clipped_BT(self, tokens: PolicyTokens) -> Tensor:
        """Return which sampled tokens' gradient the objective has cut off, or made smaller by a bound."""
        ...


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


def cut_by_clip(
    ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float | Tensor, dual_clip: float | None = None
) -> Tensor:
    """Return where ``clipped_surrogate`` has no gradient."""
    cut = (advantages > 0) & (ratio > 1 + clip_high)
    cut |= (advantages < 0) & (ratio < 1 - clip_low)
    if dual_clip is not None:
        cut |= (advantages < 0) & (ratio > dual_clip)
    return cut
