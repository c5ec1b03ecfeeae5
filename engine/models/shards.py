"""Tensors of which each rank holds a shard: the whole of one, a rank's part, and a whole laid out like another.

A tensor that is not sharded is its own whole and its own part.  Nothing here decides how anything is sharded
(``engine/training/backends/sharding.py``).
"""

from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor
from torch.nn import Parameter

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["laid_out_like", "local", "whole"]


def _is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """torch's own module of sharded tensors takes a second to import: it is asked about none that is plain."""
    if type(tensor) in (Tensor, Parameter):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Put all of it together, on every rank.  Of a sharded tensor every rank must ask, in the same order."""
    gathered: Tensor = tensor.full_tensor() if _is_sharded(tensor) else tensor
    return gathered


def local(tensor: Tensor) -> Tensor:
    """Return what this rank holds, which may be nothing; without a copy."""
    held: Tensor = tensor.to_local() if _is_sharded(tensor) else tensor
    return held


def laid_out_like(like: Tensor, given: Tensor) -> Tensor:
    """Shard ``given``, a whole that every rank has, as ``like`` is; no rank asks another."""
    if not _is_sharded(like):
        return given
    from torch.distributed.tensor import distribute_tensor

    moved = given.to(like.device)
    laid_out: Tensor = distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)
    return laid_out
