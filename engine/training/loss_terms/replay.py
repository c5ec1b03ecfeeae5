"""The loss on what self-imitation replays (SPEAR, eq. 3, 5 and 18).  It has no metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engine.algorithms.objectives import PolicyTokens
from engine.algorithms.self_imitation import self_imitation_loss
from engine.spec.objective import Clipped, Objective
from engine.training.loss_terms.interface import PolicyOutputs
from engine.training.loss_terms.policy import columns_of, tokens_of
from engine.training.microbatch import MicroBatch

__all__ = ["ReplayLoss", "imitation_clips"]


@dataclass(frozen=True)
class ReplayLoss:
    """The clipped surrogate on replayed samples, whose old log-probs are the stored ones, times ``strength``."""

    clips: Clipped
    strength: float
    """gamma_t."""
    max_response_tokens: int
    needs_reference: ClassVar[bool] = False

    def weight(self, batch: MicroBatch) -> Tensor:
        return self._loss(columns_of(batch))[1]

    def loss(self, batch: MicroBatch, outputs: PolicyOutputs) -> Tensor:
        return self._loss(tokens_of(batch, outputs))[0]

    def _loss(self, tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
        return self_imitation_loss(
            tokens,
            tokens.kept_BT,
            strength=self.strength,
            clip_low=self.clips.clip_low,
            clip_high=self.clips.clip_high,
            dual_clip=self.clips.dual_clip,
            aggregation=self.clips.aggregation,
            max_response_tokens=self.max_response_tokens,
        )

    def observed(self, batch: MicroBatch, outputs: PolicyOutputs) -> None:
        return None

    def metrics(self, observations: Sequence[None]) -> dict[str, float]:
        return {}


def imitation_clips(objective: Objective) -> Clipped:
    """The replayed loss is the clipped surrogate on tokens, with the recipe's own clips where it has such.

    The clips of gspo and cispo mean something else: beside them it has the defaults of the clipped surrogate.
    """
    if isinstance(objective, Clipped):
        return objective
    return Clipped(aggregation=getattr(objective, "aggregation", Clipped().aggregation))
