"""GSPO: the clipped surrogate of a whole sequence.  Shapes: B sequences, T tokens."""

import torch
from torch import Tensor

from engine.algorithms.objectives import PolicyTokens, clipped_surrogate, cut_by_clip
from engine.algorithms.ratios import sequence_ratios


def gspo_losses(tokens: PolicyTokens, *, clip_low: float, clip_high: float) -> Tensor:
    """-min(s A, clip(s, 1 - low, 1 + high) A) token by token, s the sequence's ratio (arXiv:2507.18071, eq. 5).

    The gradient is that of its token form, s_t = sg[s] pi_t / sg[pi_t] (section 4.3): the same where a sequence
    has one advantage, and where its turns have several each token keeps its own.

    The paper's aggregation is the mean over sequences.  Clips are small because s is a geometric mean (section 5.1).
    With one token per sequence it is PPO on tokens.
    """
    sequence_BT = sequence_ratios(tokens.logp_BT, tokens.logp_old_BT, tokens.mask_BT).detach()
    ratio_BT = sequence_BT * torch.exp(tokens.logp_BT - tokens.logp_BT.detach())
    return clipped_surrogate(ratio_BT, tokens.advantages_BT, clip_low=clip_low, clip_high=clip_high)


def gspo_clipped(tokens: PolicyTokens, *, clip_low: float, clip_high: float) -> Tensor:
    """Return which tokens lose their gradient to the sequence's clip."""
    sequence_BT = sequence_ratios(tokens.logp_BT, tokens.logp_old_BT, tokens.mask_BT)
    return cut_by_clip(sequence_BT, tokens.advantages_BT, clip_low=clip_low, clip_high=clip_high)
