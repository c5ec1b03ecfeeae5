"""Keeping entropy: the tokens whose log-prob and advantage go together most are those that collapse it.

SPEAR, appendix A.8; Cui et al., arXiv:2505.22617.  Shapes: B sequences, T tokens.

The means are over the tokens that are passed in.  Pass the whole batch of an update, with the log-probs
from before it: computed per micro-batch, the choice of tokens would depend on how the batch was cut.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CovarianceBounds:
    """omega_lb and omega_ub: tokens strictly between them may be dropped."""

    low: float
    high: float


def token_covariances(logp_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """cov_t = (log pi_t - mean log pi)(A_t - mean A), means over the masked tokens (eq. 21); 0 elsewhere.

    The paper writes means over a group at equal positions t; texts of a group are not aligned, so here, as
    in all public code, they are over tokens.
    """
    tokens = mask_BT.sum().clamp(min=1)
    logp_BT, advantages_BT = (x.detach().where(mask_BT, 0.0) for x in (logp_BT, advantages_BT))
    products_BT = (logp_BT - logp_BT.sum() / tokens) * (advantages_BT - advantages_BT.sum() / tokens)
    return products_BT.where(mask_BT, 0.0)


def covariance_bounds(
    covariances_BT: Tensor, mask_BT: Tensor, *, low_share: float = 0.02, high_share: float = 0.0002
) -> CovarianceBounds:
    """``auto``: the means of the highest 2 % and of the highest 0.02 % of the covariances (A.12.1).

    A.8 of the paper says 20 % and 0.02 %, rounded to integers; A.12.1 and the work it follows say 2 %.  At
    least one token makes each mean.  To be measured once, early.
    """
    highest = covariances_BT[mask_BT].double().sort(descending=True).values
    if not highest.numel():
        raise ValueError("bounds need at least one token")
    low, high = (highest[: max(1, math.floor(share * len(highest)))].mean().item() for share in (low_share, high_share))
    return CovarianceBounds(low, high)


def covariance_keep(
    covariances_BT: Tensor,
    mask_BT: Tensor,
    bounds: CovarianceBounds,
    generator: torch.Generator,
    *,
    clip_share: float = 0.02,
) -> Tensor:
    """M: False on a uniform sample of floor(lambda N) tokens with low < cov < high, True on all others (eq. 19, 20).

    It multiplies the *losses*: a dropped token stays in the number of tokens that the mean divides by.
    Fewer candidates than that are all dropped.  The generator (on the CPU) decides which; padding on the
    right does not.  ``clip_share`` 0 keeps everything and draws nothing.
    """
    keep_BT = torch.ones_like(mask_BT, dtype=torch.bool)
    budget = math.floor(clip_share * int(mask_BT.sum()))
    if budget == 0:
        return keep_BT
    candidates_C2 = (mask_BT & (covariances_BT > bounds.low) & (covariances_BT < bounds.high)).nonzero()
    drawn = torch.randperm(len(candidates_C2), generator=generator)[:budget].to(candidates_C2.device)
    keep_BT[candidates_C2[drawn, 0], candidates_C2[drawn, 1]] = False
    return keep_BT


def highest_covariances(covariances_BT: Tensor, mask_BT: Tensor, *, share: float = 0.0002) -> Tensor:
    """True on the floor(share N) masked tokens with the highest covariance: where KL-Cov adds its penalty."""
    chosen_BT = torch.zeros_like(mask_BT, dtype=torch.bool)
    places_N2 = mask_BT.nonzero()
    by_covariance = covariances_BT[mask_BT].argsort(descending=True, stable=True)
    places_C2 = places_N2[by_covariance[: math.floor(share * len(places_N2))]]
    chosen_BT[places_C2[:, 0], places_C2[:, 1]] = True
    return chosen_BT


def kl_cov_losses(
    logp_BT: Tensor, logp_old_BT: Tensor, advantages_BT: Tensor, ratio_BT: Tensor, chosen_BT: Tensor, *, beta: float
) -> Tensor:
    """-ratio A, plus beta |log pi - log pi_old| on the chosen tokens (KL-Cov, arXiv:2505.22617).

    There is no clip: the penalty alone holds the chosen tokens back.
    """
    losses_BT = -ratio_BT * advantages_BT
    return torch.where(chosen_BT, losses_BT + beta * (logp_BT - logp_old_BT).abs(), losses_BT)
