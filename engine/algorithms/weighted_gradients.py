"""REINFORCE with weighted tokens: loss = -[w] A log pi, the weight detached.

Unlike a clipped surrogate none of these cuts a token's gradient off; they only make it smaller.
At the old policy all of them have the gradient of REINFORCE.  ``ratio`` has any of the three sizes of
ratios.py; a mask of tokens or chunks (mismatch.py) goes into the mask of the aggregation.
"""

from torch import Tensor


def reinforce_losses(logp: Tensor, advantages: Tensor) -> Tensor:
    """-A log pi."""
    return -advantages * logp


def tis_losses(logp: Tensor, advantages: Tensor, ratio: Tensor, *, bound: float = 1.0) -> Tensor:
    """-[ratio]_0^bound A log pi: truncated importance sampling (ALE, 3.2.4.1: bound 1, ratio of the sequence)."""
    return -truncated(ratio, bound) * advantages * logp


def topr_losses(logp: Tensor, advantages: Tensor, ratio: Tensor, *, bound: float = 1.0) -> Tensor:
    """Positives -A log pi without a ratio, all others as in TIS (ALE, eq. 3; TOPR, arXiv:2503.14286).

    What is good is learned as in supervised learning, however old; what is bad is pushed down less the
    less likely it has become.  ``advantages`` are the paper's R: its sign decides.
    """
    weights = truncated(ratio, bound).where(advantages <= 0, 1.0)
    return -weights * advantages * logp


def cispo_losses(
    logp: Tensor, advantages: Tensor, ratio: Tensor, *, clip_low: float | None = None, clip_high: float = 0.28
) -> Tensor:
    """-clip(ratio, 1 - low, 1 + high) A log pi, the clip detached (CISPO, arXiv:2506.13585, eq. 4, 5).

    MiniMax sets no lower clip.
    """
    low = 0.0 if clip_low is None else 1 - clip_low
    return -ratio.detach().clamp(low, 1 + clip_high) * advantages * logp


def truncated(ratio: Tensor, bound: float) -> Tensor:
    """[ratio]_0^bound, a constant to the gradient."""
    return ratio.detach().clamp(0.0, bound)
