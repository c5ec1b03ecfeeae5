"""The loss on pairs of a corrected tool call and the failed one that it replaced (DPO; CLEANER, appendix C).

Shapes: N pairs, B = 2 N sequences (first all chosen, then all rejected), T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engine.algorithms.preference import dpo_loss
from engine.training.loss_terms.interface import PolicyOutputs
from engine.training.microbatch import MicroBatch

__all__ = ["PreferenceLoss"]


@dataclass(frozen=True)
class PreferenceLoss:
    """DPO over pairs.  Its metrics are over all pairs of a step, each with the policy from before its update.

    ``dpo/margin`` is the mean of beta (d_chosen - d_rejected), ``dpo/accuracy`` the share of pairs where it is
    positive, ``dpo/pairs`` their number.
    """

    beta: float
    strength: float = 1.0
    """By which the loss is multiplied; the metrics are not."""
    needs_reference: ClassVar[bool] = True

    def weight(self, batch: MicroBatch) -> Tensor:
        return self._loss(batch, batch.old_logp_BT, batch.old_logp_BT)[1]

    def loss(self, batch: MicroBatch, outputs: PolicyOutputs) -> Tensor:
        assert outputs.reference_logp_BT is not None
        return self.strength * self._loss(batch, outputs.logp_BT, outputs.reference_logp_BT)[0]

    def _loss(self, batch: MicroBatch, logp_BT: Tensor, reference_BT: Tensor) -> tuple[Tensor, Tensor]:
        chosen, rejected = _sides(batch)
        return dpo_loss(
            logp_BT[chosen], reference_BT[chosen], batch.mask_BT[chosen],
            logp_BT[rejected], reference_BT[rejected], batch.mask_BT[rejected],
            beta=self.beta,
        )  # fmt: skip

    @torch.no_grad()
    def observed(self, batch: MicroBatch, outputs: PolicyOutputs) -> tuple[int, float, int]:
        """Pairs with a positive margin, the sum of all margins, and all pairs."""
        assert outputs.reference_logp_BT is not None
        chosen, rejected = _sides(batch)
        gain_B = (outputs.logp_BT - outputs.reference_logp_BT).where(batch.mask_BT, 0.0).sum(1)
        margin_N = self.beta * (gain_B[chosen] - gain_B[rejected])
        return int((margin_N > 0).sum()), margin_N.double().sum().item(), len(margin_N)

    def metrics(self, observations: Sequence[tuple[int, float, int]]) -> dict[str, float]:
        pairs = sum(count for _, _, count in observations)
        return {
            "dpo/pairs": float(pairs),
            "dpo/accuracy": sum(positive for positive, _, _ in observations) / max(1, pairs),
            "dpo/margin": sum(margin for _, margin, _ in observations) / max(1, pairs),
        }


def _sides(batch: MicroBatch) -> tuple[slice, slice]:
    pairs = len(batch.rows)
    return slice(0, pairs), slice(pairs, None)
