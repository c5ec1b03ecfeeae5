"""The trainer backend on megatron-core: one leads the ranks, and each share of a batch goes to all ranks of a replica.

It runs where the learner does and tells the ranks what to do, as the torch backend of several ranks does
(``sharded.py``); what a rank does is in ``rank.py``.  A single rank is led too, since Megatron has process groups.

A checkpoint has the weights twice: in ``model/``, whole, for transformers and other trainers, and in ``shards/`` with
the optimiser and the reference, for any layout to go on from.
"""

from pathlib import Path
from typing import Any, NoReturn

from engine.training.backends.megatron.layout import Grid
from engine.training.backends.ranks import Leader
from engine.training.backends.sharded import ShardedBackend, shares
from engine.training.backends.sharded_rank import refuse_missing_shards
from engine.training.microbatch import Batch

__all__ = ["MegatronBackend"]


class MegatronBackend(ShardedBackend):
    """Implements ``interface.TrainerBackend``, without a critic."""

    def __init__(self, leader: Leader) -> None:
        super().__init__(leader)
        self._grid = Grid.of(leader.resources.megatron, leader.size)

    def value_network(self) -> NoReturn:
        """Preflight refuses recipes with a critic before it comes to this."""
        raise NotImplementedError('the megatron trainer has no critic: use resources.trainer = "torch"')

    def refuse_missing(self, shards: Path) -> None:
        for part in shards.iterdir():
            refuse_missing_shards(part)

    def dealt(self, method: str, batch: Batch, *arguments: Any, **named: Any) -> list[tuple[list[int], Any]]:
        """For each replica which of the entries it got, and what its speaker answers."""
        self._own.refuse_too_long(batch)
        dealt = shares(batch, self._grid.data)
        given = [dealt[self._grid.replica_of(rank)] for rank in range(self._leader.size)]
        calls = [([batch[place] for place in places], *arguments) for places in given]
        answers = self._leader.call(method, calls, **named)
        return [(places, answers[self._grid.speaker_of(replica)]) for replica, places in enumerate(dealt)]
