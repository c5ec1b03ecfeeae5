"""The trainer backend of several ranks (``resources.trainer_ranks``): every weight in parts, every batch in shares.

It runs where the learner does, on rank 0, and tells all ranks what to do (``ranks.py``); each is a ``TorchBackend``
that holds its part.  A batch is dealt out by the length of its entries, in turn, so that all ranks have about as much
to do; the same batch is dealt out in the same way.  The loss is that of one rank: a sum over the tokens of all ranks,
divided by their weight.

A checkpoint has the weights twice: in ``model/``, whole, for others to open, and in ``shards/``, with the optimiser and
the reference, each rank's part in a file, for any number of ranks to go on from.

Shapes: T tokens of a sample.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from engine.durable import whole_folder, written
from engine.models.weights import LoraAdapter
from engine.spec.generation import MODELS_OWN, Distribution
from engine.training.backends.interface import BatchLoss, ValueNetwork
from engine.training.backends.ranks import Leader
from engine.training.backends.sharded_rank import refuse_missing_shards
from engine.training.backends.sharding import SHARDS
from engine.training.backends.torch import write_rest
from engine.training.batch import Sample
from engine.training.loss_terms.interface import LossTerm, PolicyOutputs, ValueOutputs
from engine.training.microbatch import Batch, learned_length

__all__ = ["ShardedBackend", "ShardedValueNetwork", "shares"]


class ShardedBackend:
    """Implements ``interface.TrainerBackend``.  All methods may raise RankLost, after which nothing goes on."""

    def __init__(self, leader: Leader) -> None:
        """Start the ranks.  Raises RankLost, and what ``TorchBackend`` raises."""
        self._leader, self._own = leader, leader.start()

    def logprobs(self, samples: Sequence[Sample], *, distribution: Distribution = MODELS_OWN) -> list[list[float]]:
        rows = [[0.0] * len(sample) for sample in samples]
        for places, answer in self.dealt("logprobs", samples, distribution=distribution):
            for place, row in zip(places, answer, strict=True):
                rows[place] = row
        return rows

    def forward_backward(
        self, batch: Batch, loss_terms: Sequence[LossTerm[PolicyOutputs]], *, distribution: Distribution = MODELS_OWN
    ) -> BatchLoss:
        answers = self.dealt("forward_backward", batch, loss_terms, distribution=distribution)
        return _together([loss for _, loss in answers])

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        norm: float = self.everywhere("step", learning_rate=learning_rate, grad_clip=grad_clip)
        return norm

    def renew_optimizer(self, *, weight_decay: float) -> None:
        self.everywhere("renew_optimizer", weight_decay=weight_decay)

    def set_weight_decay(self, weight_decay: float) -> None:
        self.everywhere("set_weight_decay", weight_decay)

    def freeze_reference(self) -> None:
        self.everywhere("freeze_reference")

    def value_network(self) -> ValueNetwork:
        self.everywhere("make_critic")
        return ShardedValueNetwork(self)

    def weights(self) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = self.everywhere("weights_for_the_leader")
        return weights

    def adapter(self) -> LoraAdapter:
        adapter: LoraAdapter = self.everywhere("adapter_for_the_leader")
        return adapter

    def save(self, folder: Path, beside: Mapping[str, Any]) -> None:
        """Write ``model/`` (loadable by transformers), ``shards/`` and ``trainer.pt`` (what is equal on all ranks)."""
        folder = Path(folder).resolve()  # another rank may work in another folder
        with whole_folder(folder) as partial:
            equal = self.everywhere("save_shards", partial / SHARDS)
            self.refuse_missing(partial / SHARDS)
            with written(folder / "model"):
                self._leader.call("save_model", [(partial / "model",), *[(None,)] * (self._leader.size - 1)])
            write_rest(partial, folder, {**beside, **equal})

    def refuse_missing(self, shards: Path) -> None:
        """Raise OSError where what a rank has written is not here."""
        refuse_missing_shards(shards)

    def load(self, folder: Path) -> dict[str, Any]:
        beside: dict[str, Any] = self.everywhere("load", Path(folder).resolve())
        return beside

    def everywhere(self, method: str, *arguments: Any, **named: Any) -> Any:
        """The same call on every rank; the leader's answer."""
        return self._leader.call(method, [arguments] * self._leader.size, **named)[0]

    def dealt(self, method: str, batch: Batch, *arguments: Any, **named: Any) -> list[tuple[list[int], Any]]:
        """For each rank which of the entries it got, and its answer.

        Raises ValueError where a sample does not fit into the context.
        """
        self._own.refuse_too_long(batch)
        dealt = shares(batch, self._leader.size)
        given = [([batch[place] for place in places], *arguments) for places in dealt]
        return list(zip(dealt, self._leader.call(method, given, **named), strict=True))


class ShardedValueNetwork:
    """Implements ``interface.ValueNetwork``: the critic that every rank holds its part of."""

    def __init__(self, policy: ShardedBackend) -> None:
        self._policy = policy

    def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        rows = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
        for places, answer in self._policy.dealt("critic.values", samples):
            for place, row in zip(places, answer, strict=True):
                rows[place] = row
        return rows

    def forward_backward(self, batch: Batch, loss_terms: Sequence[LossTerm[ValueOutputs]]) -> BatchLoss:
        return _together([loss for _, loss in self._policy.dealt("critic.forward_backward", batch, loss_terms)])

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        norm: float = self._policy.everywhere("critic.step", learning_rate=learning_rate, grad_clip=grad_clip)
        return norm

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._policy.everywhere("critic_for_the_leader")
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._policy.everywhere("critic.load_state", state)


def shares(batch: Batch, ranks: int) -> list[list[int]]:
    """For each rank, or replica of a network, the places of its entries: the learned ones by length, dealt in turn."""
    lengths = [learned_length(entry) for entry in batch]
    order = sorted(filter(lengths.__getitem__, range(len(batch))), key=lengths.__getitem__)
    return [order[rank::ranks] for rank in range(ranks)]


def _together(losses: Sequence[BatchLoss]) -> BatchLoss:
    """The losses of ranks that have divided by the weight of all; what they observed, rank after rank."""
    observed = [
        [entry for of_rank in of_term for entry in of_rank]
        for of_term in zip(*(loss.observations for loss in losses), strict=True)
    ]
    return BatchLoss(sum(loss.mean for loss in losses), losses[0].weight, observed)
