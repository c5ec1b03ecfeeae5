"""How far one policy is from another on the tokens that were sampled."""

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to +-20 before exp: e^20 is far beyond every clip and still a finite float32."""


def token_ratios(logp: Tensor, logp_reference: Tensor) -> Tensor:
    """pi / pi_reference of each token.  1, with the gradient of logp, where the two are equal."""
    return torch.exp((logp - logp_reference).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def kl_k3(logp: Tensor, logp_sampler: Tensor) -> Tensor:
    """Estimate of KL(sampler || policy) per token drawn from the sampler: r - 1 - log r with r = policy / sampler.

    Unbiased and never negative (Schulman, "Approximating KL divergence", 2020: k3).
    """
    log_ratio = (logp - logp_sampler).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.expm1(log_ratio) - log_ratio
