"""Which tokens truncated sampling keeps, and log-probs of what is left.

The order is that of transformers: the temperature first, then top-k, then top-p of what top-k has left, brought to a
sum of 1, then min-p.  vLLM differs in min-p, which it takes before top-k; SGLang's torch sampler in top-p, which it
takes of the whole distribution also beside top-k.  Tokens of equal logits share their fate, so that the order in which
a sort leaves them decides nothing: a few more than k may be kept.

Sampler and trainer share these functions: what one of them cuts is cut by the other, but for rounding.

Shapes: N positions, V vocabulary, M likeliest tokens.
"""

import torch
from torch import Tensor

FIRST_LOOK = 1024
"""Tokens in which a nucleus is looked for before the whole vocabulary is sorted."""


@torch.no_grad()
def lowest_kept(scaled_NV: Tensor, top_k_N: Tensor, top_p_N: Tensor, min_p_N: Tensor) -> Tensor:
    """The smallest logit [N, 1] that is kept of ``scaled_NV``, logits that the temperature has divided already.

    Off is a top-k of 0, a top-p of 1 and a min-p of 0; a row where all are off gets -inf.  The likeliest token is
    always kept.  The nucleus of top-p is the smallest set whose probability reaches it (arXiv:1904.09751); min-p keeps
    what is at least so many times as likely as the likeliest (arXiv:2407.01082).
    """
    floor_N1 = torch.full_like(scaled_NV[:, :1], -torch.inf)
    top_k_N = top_k_N.clamp(max=scaled_NV.shape[-1])
    if most := int(top_k_N.max()):
        kth_N1 = scaled_NV.topk(most).values.gather(1, (top_k_N - 1).clamp(min=0).unsqueeze(1))
        floor_N1 = torch.where(top_k_N.unsqueeze(1) > 0, kth_N1, floor_N1)
    if bool((top_p_N < 1).any()):
        nucleus_N1 = _lowest_of_nucleus(scaled_NV, floor_N1, top_p_N.unsqueeze(1))
        floor_N1 = torch.where(top_p_N.unsqueeze(1) < 1, torch.maximum(floor_N1, nucleus_N1), floor_N1)
    if bool((min_p_N > 0).any()):
        likely_enough_N1 = scaled_NV.amax(-1, keepdim=True) + min_p_N.log().to(scaled_NV.dtype).unsqueeze(1)
        floor_N1 = torch.maximum(floor_N1, likely_enough_N1)
    return floor_N1


def without_the_cut(scaled_NV: Tensor, floor_N1: Tensor, token_N: Tensor) -> Tensor:
    """``scaled_NV`` with -inf for what lies below the floor, but for each row's own token.

    That token was sampled, so it had been kept.  Where the policy has moved, or rounds otherwise, its log-prob is so
    that of the kept set with the token in it: finite, and with a gradient (docs/sampling.md).
    """
    kept_NV = (scaled_NV >= floor_N1).scatter(1, token_N.unsqueeze(1), True)
    return scaled_NV.masked_fill(~kept_NV, -torch.inf)


def _lowest_of_nucleus(scaled_NV: Tensor, floor_N1: Tensor, top_p_N1: Tensor) -> Tensor:
    """The smallest logit of each row's nucleus among what is at or above the floor, [N, 1]."""
    top_N1 = scaled_NV.amax(-1, keepdim=True)
    total_N1 = (scaled_NV - top_N1).exp().masked_fill(scaled_NV < floor_N1, 0.0).double().sum(-1, keepdim=True)

    def lowest(ordered_NM: Tensor) -> tuple[Tensor, Tensor]:
        """The answer if the nucleus lies within the M likeliest, and whether it does."""
        reached_NM = (ordered_NM - top_N1).exp().double().cumsum(-1) / total_N1
        count_N1 = (reached_NM < top_p_N1).sum(-1, keepdim=True)
        inside_N1 = count_N1 < ordered_NM.shape[-1]
        return ordered_NM.gather(1, count_N1.clamp(max=ordered_NM.shape[-1] - 1)), inside_N1

    vocabulary = scaled_NV.shape[-1]
    lowest_N1, inside_N1 = lowest(scaled_NV.topk(min(FIRST_LOOK, vocabulary)).values)
    if vocabulary <= FIRST_LOOK or bool((inside_N1 | (top_p_N1 >= 1)).all()):
        return lowest_N1
    # For all rows, so that the shape of what a row is computed with does not depend on the others.
    return torch.where(inside_N1, lowest_N1, lowest(scaled_NV.sort(descending=True).values)[0])
