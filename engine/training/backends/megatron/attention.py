"""Attention for Megatron's layers: torch's own kernels, over whole rows, packed rows, or parts of a sequence.

Megatron's own local attention takes neither packed rows nor parts of a sequence; this one takes both, on the CPU and on
a GPU.  What a query may see is decided by where its token stands: no later token, and none of another sequence that
shares the row.

With context parallelism a rank holds two pieces of each sequence, an early one and the late one that mirrors it, so
that all ranks have equally much to attend to (``positions_on``).  Keys and values are gathered over the ranks, and
their gradients summed back.

Shapes: S positions of this rank, W positions of all, R rows, H heads, G key-value heads, E head dim.
"""

from typing import Any

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer import TransformerConfig
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["CausalAttention", "positions_on"]


def positions_on(part: int, parts: int, width: int) -> Tensor:
    """Which of ``width`` positions part number ``part`` holds, in its order [W / parts]."""
    if parts == 1:
        return torch.arange(width)
    pieces = torch.arange(width).chunk(2 * parts)
    return torch.cat([pieces[part], pieces[2 * parts - 1 - part]])


class CausalAttention(nn.Module):
    """What Megatron calls a core attention.  It has no parameters and no dropout."""

    def __init__(self, *, config: TransformerConfig, pg_collection: ProcessGroupCollection, **_unused: Any) -> None:
        super().__init__()
        self._context = pg_collection.cp

    def forward(
        self, query_SRHE: Tensor, key_SRGE: Tensor, value_SRGE: Tensor, segments_RW: Tensor | None, *_: Any, **__: Any
    ) -> Tensor:
        """[S, R, H * E].  ``segments_RW`` numbers the sequences of a row; None: each row is one."""
        query, key, value = (heads.permute(1, 2, 0, 3) for heads in (query_SRHE, key_SRGE, value_SRGE))
        if self._context.size() > 1:
            seen = self._seen_by_part(query_SRHE.shape[0], segments_RW, query.device)
            key, value = (self._of_all_parts(heads) for heads in (key_SRGE, value_SRGE))
            attended = scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)
        elif segments_RW is None:
            attended = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        elif len(segments_RW) == 1:
            attended = _one_by_one(query, key, value, segments_RW[0])
        else:
            seen = _seen(torch.arange(segments_RW.shape[1]), torch.arange(segments_RW.shape[1]), segments_RW)
            attended = scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)
        return attended.permute(2, 0, 1, 3).flatten(2)

    def _of_all_parts(self, heads_SRGE: Tensor) -> Tensor:
        gathered: Tensor = gather_from_sequence_parallel_region(heads_SRGE.contiguous(), group=self._context)
        return gathered.permute(1, 2, 0, 3)

    def _seen_by_part(self, held: int, segments_RW: Tensor | None, device: torch.device) -> Tensor:
        """[R or 1, 1, S, W], where keys stand in the order of the ranks."""
        parts, width = self._context.size(), held * self._context.size()
        queries = positions_on(self._context.rank(), parts, width).to(device)
        keys = torch.cat([positions_on(part, parts, width) for part in range(parts)]).to(device)
        return _seen(queries, keys, segments_RW)


def _seen(queries_S: Tensor, keys_W: Tensor, segments_RW: Tensor | None) -> Tensor:
    """bool [R or 1, 1, S, W]: which keys a query sees, both given by their positions in the row."""
    device = queries_S.device if segments_RW is None else segments_RW.device
    queries_S, keys_W = queries_S.to(device), keys_W.to(device)
    seen_SW = queries_S.unsqueeze(1) >= keys_W.unsqueeze(0)
    if segments_RW is None:
        return seen_SW[None, None]
    same_RSW = segments_RW[:, queries_S].unsqueeze(2) == segments_RW[:, keys_W].unsqueeze(1)
    return (seen_SW & same_RSW).unsqueeze(1)


def _one_by_one(query: Tensor, key: Tensor, value: Tensor, segments_W: Tensor) -> Tensor:
    """Each sequence of one packed row by itself: what two of them would say to each other is never computed."""
    lengths = torch.unique_consecutive(segments_W, return_counts=True)[1].tolist()
    parts = zip(*(heads.split(lengths, dim=2) for heads in (query, key, value)), strict=True)
    attended = [scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) for q, k, v in parts]
    return torch.cat(attended, dim=2)
