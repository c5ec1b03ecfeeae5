"""Training on rollouts that were shown an experience which the trainer does not see.

AgentEvolver, section 4.3.  The losses are of any shape; taking the experience out is done in stripping.py.
"""

import torch
from torch import Tensor

from engine.algorithms.objectives import clipped_surrogate


def boosted_surrogate(
    ratio: Tensor,
    advantages: Tensor,
    stripped_mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    boosted_clip_high: float = 0.6,
    dual_clip: float | None = 3.0,
) -> Tensor:
    """The clipped surrogate whose upper clip is wider where the experience was stripped and A > 0 (eq. 17).

    Without the experience a good answer was unlikely, so its ratio grows most where it should be learned
    most.  Off ``stripped_mask`` it is ``clipped_surrogate`` to the bit.

    Old log-probs are recomputed after stripping, so the ratios of a step's first minibatch are 1 and neither
    clip is reached: the wider one acts from the second minibatch on.
    """
    plain = clipped_surrogate(ratio, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    boosted = clipped_surrogate(ratio, advantages, clip_low=clip_low, clip_high=boosted_clip_high, dual_clip=dual_clip)
    return torch.where(stripped_mask & (advantages > 0), boosted, plain)
