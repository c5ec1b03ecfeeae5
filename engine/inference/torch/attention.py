"""Attention of new tokens over the first columns of cache rows.  Shapes are those of decoder.py."""

import torch
from torch import Tensor


def bias(column_W: Tensor, positions_RC: Tensor, groups: int) -> Tensor:
    """-inf [R, 1, G * C, W] where a column lies beyond a query's position, else 0."""
    bias_RCW = torch.where(column_W > positions_RC.unsqueeze(-1), -torch.inf, 0.0)
    # Queries of one key-value head stand together, [G, C] flattened: the bias repeats G times (C = 1: no copy).
    return (bias_RCW if positions_RC.shape[1] == 1 else bias_RCW.repeat(1, groups, 1)).unsqueeze(1)


def looked_at(keys_SKEW: Tensor, values_SKWE: Tensor, slots_R: Tensor | None, columns: int) -> tuple[Tensor, Tensor]:
    """The first columns of these slots' rows, as copies; of all slots, in place, where ``slots_R`` is None."""
    keys, values = keys_SKEW[..., :columns], values_SKWE[:, :, :columns]
    return (keys, values) if slots_R is None else (keys.index_select(0, slots_R), values.index_select(0, slots_R))


def attended(q_NHE: Tensor, keys_RKEW: Tensor, values_RKWE: Tensor, bias_R1QW: Tensor) -> Tensor:
    """Attention of N = R * C tokens; [N, H * E]."""
    rows, kv_heads, head_dim, _ = keys_RKEW.shape
    tokens, heads = q_NHE.shape[0] // rows, q_NHE.shape[1]
    groups = heads // kv_heads
    if tokens == 1:  # the same places, in fewer operations
        q_RKQE = q_NHE.view(rows, kv_heads, groups, head_dim)
    else:
        q_RKQE = q_NHE.view(rows, tokens, kv_heads, groups, head_dim).permute(0, 2, 3, 1, 4)
        q_RKQE = q_RKQE.reshape(rows, kv_heads, -1, head_dim)
    # In float32 also where keys and values are not, as transformers has it.
    weights_RKQW = torch.softmax(q_RKQE @ keys_RKEW + bias_R1QW, dim=-1).to(q_RKQE.dtype)
    y_RKQE = weights_RKQW @ values_RKWE
    if tokens == 1:
        return y_RKQE.view(rows, heads * head_dim)
    y_RKGCE = y_RKQE.view(rows, kv_heads, groups, tokens, head_dim)
    return y_RKGCE.permute(0, 3, 1, 2, 4).reshape(rows * tokens, heads * head_dim)
