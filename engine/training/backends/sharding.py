"""What a rank of a trainer is to its backend: a process with one device, and what it does with the others.

``Alone`` is the only rank of a trainer that is not sharded: nothing is sharded, and every sum is the rank's own.  One
of several ranks is ``ShardedRank`` (``sharded_rank.py``), a module of its own because it takes a second to import.

Every call but ``Alone``'s is collective: all ranks make it, in the same order.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.models.shards import local

__all__ = ["ALONE", "SHARDS", "Alone", "Rank", "all_finite"]

SHARDS = "shards"
"""The folder of a checkpoint that holds what ``sharded_rank.write_shards`` wrote."""


class Rank(Protocol):
    """One process of a trainer, and what it does with the others."""

    number: int
    size: int

    def shard(self, root: nn.Module, layers: Sequence[nn.Module], computed_in: torch.dtype | None) -> None:
        """From now on ``root`` and each layer hold this rank's part of their parameters.

        Those of the layers are computed in ``computed_in`` where that is given; all are kept, and their gradients
        summed, in float32.
        """
        ...

    def rest(self, root: nn.Module) -> None:
        """Hold no more than this rank's part, also where the last pass had no backward."""
        ...

    def total(self, number: float) -> float:
        """The sum of all ranks' numbers."""
        ...

    def most(self, number: int) -> int:
        """The largest of all ranks' numbers."""
        ...

    def agreed(self, holds: bool) -> bool:
        """Whether it holds on every rank."""
        ...


class Alone:
    """Implements ``Rank``."""

    number, size = 0, 1

    def shard(self, root: nn.Module, layers: Sequence[nn.Module], computed_in: torch.dtype | None) -> None:
        pass

    def rest(self, root: nn.Module) -> None:
        pass

    def total(self, number: float) -> float:
        return number

    def most(self, number: int) -> int:
        return number

    def agreed(self, holds: bool) -> bool:
        return holds


ALONE = Alone()


def all_finite(rank: Rank, gradients: Sequence[Tensor]) -> bool:
    """Whether every number of them is, on every rank."""
    return rank.agreed(all(bool(torch.isfinite(local(gradient)).all()) for gradient in gradients))
