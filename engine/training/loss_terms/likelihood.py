"""The loss of the supervised stage (ALE, eq. 1).  It has no metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engine.algorithms.supervised import masked_likelihood_loss
from engine.training.loss_terms.interface import PolicyOutputs
from engine.training.microbatch import MicroBatch

__all__ = ["LikelihoodLoss"]


@dataclass(frozen=True)
class LikelihoodLoss:
    """Minus the log-likelihood of the learned tokens; its mean is in nats per token."""

    needs_reference: ClassVar[bool] = False

    def weight(self, batch: MicroBatch) -> Tensor:
        return masked_likelihood_loss(batch.old_logp_BT, batch.mask_BT)[1]

    def loss(self, batch: MicroBatch, outputs: PolicyOutputs) -> Tensor:
        return masked_likelihood_loss(outputs.logp_BT, batch.mask_BT)[0]

    def observed(self, batch: MicroBatch, outputs: PolicyOutputs) -> None:
        return None

    def metrics(self, observations: Sequence[None]) -> dict[str, float]:
        return {}
