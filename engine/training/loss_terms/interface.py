"""What a loss is to a trainer backend: the columns of a micro-batch and what the network says of it in, a sum out.

The loss of a batch is the sum of its terms' sums over the sum of their weights.  Both add up over micro-batches and
ranks, so that the way a batch was cut changes no gradient.  Several losses on the same tokens are several terms of one
batch; a loss on other tokens (a replay beside the policy's own) is a batch of its own, and the means are added.

Shapes: B sequences, T tokens, N scored tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from engine.training.microbatch import Batch, MicroBatch

__all__ = ["LossTerm", "Part", "PolicyOutputs", "ValueOutputs"]


@dataclass(frozen=True)
class PolicyOutputs:
    """What a policy says of the scored tokens of a micro-batch."""

    logp_BT: Tensor
    """Log-probs with gradient; 0 on tokens that are not scored."""
    entropy_N: Tensor
    """Entropy in nats of the distribution that each scored token was drawn from, without gradient."""
    reference_logp_BT: Tensor | None = None
    """Log-probs under the frozen reference, where a term needs them."""


@dataclass(frozen=True)
class ValueOutputs:
    """What a critic says of a micro-batch."""

    values_BT: Tensor
    """With gradient: what it expects before each token of the mask; 0 elsewhere."""


OutputsT = TypeVar("OutputsT", contravariant=True)


class LossTerm(Protocol[OutputsT]):
    """One loss.  It keeps nothing between calls, so that a backend may send it to every rank."""

    @property
    def needs_reference(self) -> bool:
        """Return whether the loss compares the policy with its frozen reference."""
        ...

    def weight(self, batch: MicroBatch) -> Tensor:
        """Return what the micro-batch adds to the number that the sum is divided by.

        It depends on the columns alone: a backend may want it before it runs the network.
        """
        ...

    def loss(self, batch: MicroBatch, outputs: OutputsT) -> Tensor:
        """The sum of the losses of the micro-batch, with gradient."""
        ...

    def observed(self, batch: MicroBatch, outputs: OutputsT) -> Any:
        """Return what ``metrics`` wants to know of the micro-batch: plain numbers that travel between processes."""
        ...

    def metrics(self, observations: Sequence[Any]) -> dict[str, float]:
        """The metrics of a whole step, from what was observed in its micro-batches, in their order."""
        ...


@dataclass(frozen=True)
class Part:
    """A batch and the loss terms on it: one of the means that an optimiser update descends on."""

    batch: Batch
    terms: Sequence[LossTerm[PolicyOutputs]]
