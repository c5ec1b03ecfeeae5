"""How far one policy is from another on the tokens that were sampled.

Shapes: B sequences, T tokens, K chunks.  A ratio has one of three sizes: of a token, or the geometric mean
over the tokens of a chunk or of a sequence, which a single outlier cannot move far.
"""

from typing import Literal

import torch
from torch import Tensor

from engine.algorithms.chunks import at_least_float32, chunk_means, over_tokens

RatioSize = Literal["token", "chunk", "sequence"]

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to +-20 before exp: e^20 is far beyond every clip and still a finite float32."""


def token_ratios(logp: Tensor, logp_reference: Tensor) -> Tensor:
    """pi / pi_reference of each token.  1, with the gradient of logp, where the two are equal."""
    log_ratio = at_least_float32(logp) - at_least_float32(logp_reference)
    return torch.exp(log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def chunk_ratios(logp_BT: Tensor, logp_reference_BT: Tensor, chunk_BT: Tensor) -> Tensor:
    """rho_c = (prod over t in c of pi / pi_reference)^(1 / |c|) on each token of chunk c (IPA; ALE, eq. 6).

    1 on tokens of no chunk.  The gradient reaches every token of the chunk.
    """
    log_ratio_BT = at_least_float32(logp_BT) - at_least_float32(logp_reference_BT)
    mean_BT = over_tokens(chunk_means(log_ratio_BT, chunk_BT), chunk_BT)
    return torch.exp(mean_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def sequence_ratios(logp_BT: Tensor, logp_reference_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """s = (prod over t of pi / pi_reference)^(1 / |y|) on each sampled token (GSPO, arXiv:2507.18071, eq. 7).

    1 elsewhere: a sequence is one chunk that may have holes.
    """
    return chunk_ratios(logp_BT, logp_reference_BT, mask_BT.long() - 1)


def ratios_of(
    size: RatioSize, logp_BT: Tensor, logp_reference_BT: Tensor, mask_BT: Tensor, chunk_BT: Tensor | None = None
) -> Tensor:
    """The ratio of ``size`` on each token; only "chunk" needs ``chunk_BT``."""
    match size:
        case "token":
            return token_ratios(logp_BT, logp_reference_BT)
        case "sequence":
            return sequence_ratios(logp_BT, logp_reference_BT, mask_BT)
        case "chunk":
            if chunk_BT is None:
                raise ValueError("the ratio of a chunk needs the chunks")
            return chunk_ratios(logp_BT, logp_reference_BT, chunk_BT)


def kl_k3(logp: Tensor, logp_sampler: Tensor) -> Tensor:
    """Estimate of KL(sampler || policy) per token drawn from the sampler: r - 1 - log r with r = policy / sampler.

    Unbiased and never negative (Schulman, "Approximating KL divergence", 2020: k3).
    """
    log_ratio = (at_least_float32(logp) - at_least_float32(logp_sampler)).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.expm1(log_ratio) - log_ratio
