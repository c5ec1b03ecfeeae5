"""Chunks: the stretches of sampled tokens from one interaction with the environment to the next.

Shapes: B sequences, T tokens, K chunks.  ``chunk_BT`` holds the number of the chunk a token belongs to,
from 0 in each sequence, and -1 on tokens that nobody sampled (ALE, section 3.2.4.2).
"""

import torch
from torch import Tensor


def chunk_numbers(mask_BT: Tensor) -> Tensor:
    """Every unbroken run of sampled tokens is a chunk: what stands between two turns is always given."""
    before_BT = torch.nn.functional.pad(mask_BT[:, :-1], (1, 0))
    starts_BT = mask_BT & ~before_BT
    return (starts_BT.cumsum(1) - 1).where(mask_BT, -1)


def over_tokens(values_BK: Tensor, chunk_BT: Tensor) -> Tensor:
    """Each token gets the value of its chunk; tokens of no chunk get 0."""
    return values_BK.gather(1, chunk_BT.clamp(min=0)).where(chunk_BT >= 0, 0.0)


def chunk_means(values_BT: Tensor, chunk_BT: Tensor) -> Tensor:
    """The mean of each chunk [B, K], 0 for a chunk without tokens; in float32 at least."""
    values_BT = at_least_float32(values_BT)
    inside_BT = chunk_BT >= 0
    chunks = max(1, int(chunk_BT.max()) + 1) if chunk_BT.numel() else 1
    places_BT = chunk_BT.clamp(min=0)
    zeros_BK = values_BT.new_zeros(chunk_BT.shape[0], chunks)
    sums_BK = zeros_BK.scatter_add(1, places_BT, values_BT.where(inside_BT, 0.0))
    counts_BK = zeros_BK.scatter_add(1, places_BT, inside_BT.to(values_BT.dtype))
    return sums_BK / counts_BK.clamp(min=1)


def at_least_float32(values: Tensor) -> Tensor:
    """Widen half precision: there a count of tokens stands still at 256 or 2048, and e^20 is infinite."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
