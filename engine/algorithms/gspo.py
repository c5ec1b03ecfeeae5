"""GSPO: the clipped surrogate of a whole sequence.  Shapes: B sequences, T tokens."""

from torch import Tensor

from engine.algorithms.aggregation import aggregated
from engine.algorithms.objectives import PolicyTokens, clipped_surrogate
from engine.algorithms.ratios import sequence_ratios
from engine.spec.recipe import Aggregation


def gspo_loss(
    tokens: PolicyTokens,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    aggregation: Aggregation = "seq-mean-token-mean",
    max_response_tokens: int = 1,
) -> tuple[Tensor, Tensor]:
    """``(sum, weight)`` of -min(s A, clip(s, 1 - low, 1 + high) A), s the ratio of the sequence (arXiv:2507.18071, eq. 5).

    The default aggregation is the paper's mean over sequences.  Clips are small because s is a geometric
    mean (section 5.1).  With one token per sequence it is PPO on tokens.
    """
    ratio_BT = sequence_ratios(tokens.logp_BT, tokens.logp_old_BT, tokens.mask_BT)
    losses_BT = clipped_surrogate(ratio_BT, tokens.advantages_BT, clip_low=clip_low, clip_high=clip_high)
    return aggregated(losses_BT, tokens.mask_BT, aggregation, max_response_tokens=max_response_tokens)
