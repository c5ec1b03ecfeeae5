"""Staying near a frozen reference: three estimates of KL(policy || reference) from the policy's own tokens.

Schulman, "Approximating KL divergence", 2020.  With log r = log reference - log policy:

- k1 = -log r: unbiased, of either sign.  As a loss it is useless: its expected gradient is 0.
- k2 = (log r)^2 / 2: biased as a value; its gradient is that of the KL.
- k3 = r - 1 - log r: unbiased and never negative.
"""

from typing import Literal

from torch import Tensor

from engine.algorithms.ratios import LOG_RATIO_BOUND, kl_k3

KlEstimator = Literal["k1", "k2", "k3"]


def kl_to_reference(logp: Tensor, logp_reference: Tensor, estimator: KlEstimator) -> Tensor:
    """The estimate on each token, with the gradient of ``logp``; exactly 0 where the two are equal."""
    if estimator == "k3":
        return kl_k3(logp_reference, logp)
    log_ratio = (logp - logp_reference).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return log_ratio if estimator == "k1" else log_ratio.square() / 2
