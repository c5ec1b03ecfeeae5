"""What the trainer asks of a backend: the weights of a policy, on one process or on many.

A backend is blind.  It sees token ids, masks and other columns of samples, and losses that give a sum and a weight
(``loss_terms/interface.py``); it knows no recipe and no loss by its name.  What a recipe means is decided in
``loss_terms/composition.py``; how often and in which order the weights move is decided in ``trainer.py``.

Three things that look like more than one network stand in here, because only the backend can place their weights:

- a frozen *reference* (KL penalties, DPO): a copy of the weights at one moment.  A backend may shard it, keep it on the
  host, or, where it trains adapters, leave them out; the loss sees its log-probs and nothing else.
- a *critic*: a second network that begins as a copy of the policy's body.  It has its own optimiser and its own losses
  and nothing in common with the policy afterwards.
- the *optimiser*: ``step`` takes the learning rate, since schedules are the trainer's business.

Shapes: T tokens of a sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from engine.models.weights import LoraAdapter
from engine.spec.generation import MODELS_OWN, Distribution
from engine.training.batch import Sample
from engine.training.loss_terms.interface import LossTerm, PolicyOutputs, ValueOutputs
from engine.training.microbatch import Batch

__all__ = ["BatchLoss", "TrainerBackend", "ValueNetwork"]


@dataclass(frozen=True)
class BatchLoss:
    """What ``forward_backward`` says of a whole batch, over all ranks."""

    mean: float
    """The sum of the terms' sums over ``weight``; 0 where that is 0."""
    weight: float
    """The sum of the terms' weights.  Where it is 0 the batch has added nothing to the gradient."""
    observations: Sequence[Sequence[Any]]
    """For each term what it observed, one entry for each micro-batch in their order."""


class ValueNetwork(Protocol):
    """A critic: one number for each token that the policy sampled."""

    def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """float32 [T] for each sample: V before each token of its mask, given what stands before it; 0 elsewhere.

        Cut as ``forward_backward`` cuts the same samples, so that there the first values are exactly these.
        """
        ...

    def forward_backward(self, batch: Batch, loss_terms: Sequence[LossTerm[ValueOutputs]]) -> BatchLoss:
        """Add to the gradient that of the batch's loss, as ``TrainerBackend.forward_backward`` does."""
        ...

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        """Move the weights, as ``TrainerBackend.step`` does."""
        ...

    def state(self) -> dict[str, Any]:
        """Weights and optimiser, as ``torch.load`` takes them with ``weights_only``."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` gave."""
        ...


class TrainerBackend(Protocol):
    """The policy's weights, their gradient, their optimiser, and a frozen reference if one was asked for.

    One call at a time.  Equal calls on equal weights give equal numbers; on the CPU with one thread, equal bits.
    Samples longer than the context raise ValueError.
    """

    def logprobs(self, samples: Sequence[Sample], *, distribution: Distribution = MODELS_OWN) -> list[list[float]]:
        """Log-probs under the present weights, one for each token of each sample; 0 outside the sample's mask.

        They are those of ``distribution``, cut into micro-batches as ``forward_backward`` cuts the same samples, so
        that there the first ratios are exactly 1.
        """
        ...

    def forward_backward(
        self, batch: Batch, loss_terms: Sequence[LossTerm[PolicyOutputs]], *, distribution: Distribution = MODELS_OWN
    ) -> BatchLoss:
        """Add to the gradient that of the batch's loss: the sum of the terms' sums over the sum of their weights.

        Samples of one entry of the batch stand in the same micro-batch.  The log-probs of the policy and of the
        reference are those of ``distribution``.  Raises RuntimeError if a term needs a reference and there is none.
        """
        ...

    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        """Clip the gradient to the norm ``grad_clip``, move the weights, and forget the gradient.

        The answer is the gradient's norm before clipping.  Raises NonFiniteGradient, with the weights and the
        optimiser as they were and the gradient forgotten.
        """
        ...

    def renew_optimizer(self, *, weight_decay: float) -> None:
        """Begin with an optimiser that has no past."""
        ...

    def set_weight_decay(self, weight_decay: float) -> None:
        """Give the optimiser another weight decay from its next step on; its moments stay."""
        ...

    def freeze_reference(self) -> None:
        """Keep a copy of the present weights as the reference of all that follows."""
        ...

    def value_network(self) -> ValueNetwork:
        """A critic whose body is a copy of the present weights and whose head gives 0 everywhere at first."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights on the CPU, by their Hugging Face names."""
        ...

    def adapter(self) -> LoraAdapter:
        """A copy of the adapter of a run with LoRA, alone and on the CPU."""
        ...

    def save(self, folder: Path, beside: Mapping[str, Any]) -> None:
        """Write weights, optimiser and reference, and ``beside`` (tensors and plain values), into a new folder.

        All or nothing; ``model/`` in it is a folder that transformers loads.  Raises OSError, also if ``folder``
        exists and is not empty.
        """
        ...

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over what ``save`` wrote, and answer ``beside``.

        What follows is bit-identical to never having stopped.  Raises DamagedFile.
        """
        ...
