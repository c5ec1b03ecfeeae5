"""The loss of a critic (PPO).  It has no metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engine.algorithms.gae import critic_loss
from engine.training.loss_terms.interface import ValueOutputs
from engine.training.microbatch import MicroBatch

__all__ = ["ValueLoss"]


@dataclass(frozen=True)
class ValueLoss:
    """Regression of values on returns, which stops rewarding a value beyond ``clip`` of where it was."""

    clip: float | None
    needs_reference: ClassVar[bool] = False

    def weight(self, batch: MicroBatch) -> Tensor:
        assert batch.values_BT is not None
        return self._loss(batch, batch.values_BT)[1]

    def loss(self, batch: MicroBatch, outputs: ValueOutputs) -> Tensor:
        return self._loss(batch, outputs.values_BT)[0]

    def _loss(self, batch: MicroBatch, values_BT: Tensor) -> tuple[Tensor, Tensor]:
        assert batch.values_BT is not None
        assert batch.returns_BT is not None
        return critic_loss(values_BT, batch.values_BT, batch.returns_BT, batch.mask_BT, clip=self.clip)

    def observed(self, batch: MicroBatch, outputs: ValueOutputs) -> None:
        return None

    def metrics(self, observations: Sequence[None]) -> dict[str, float]:
        return {}
