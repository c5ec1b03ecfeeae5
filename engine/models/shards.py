"""Tensors of which each rank holds a shard: the whole of one, a rank's part, and a whole laid out like another.

A tensor that is not sharded is its own whole and its own part.  Nothing here decides how anything is sharded
(``engine/training/backends/sharding.py``).
"""

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

__all__ = ["laid_out_like", "local", "whole"]


def whole(tensor: Tensor) -> Tensor:
    """Put all of it together, on every rank.  Of a sharded tensor every rank must ask, in the same order."""
    gathered: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return gathered


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds, which may be nothing; without a copy."""
    held: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return held


def laid_out_like(like: Tensor, given: Tensor) -> Tensor:
    """Shard ``given``, a whole that every rank has, as ``like`` is; no rank asks another."""
    if not isinstance(like, DTensor):
        return given
    moved = given.to(like.device)
    laid_out: Tensor = distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)
    return laid_out
