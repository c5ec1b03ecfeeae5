"""The log-probs that an update's own forward pass gives, as a term without a loss.

Where one optimiser update is all that a step makes of its samples, nothing moves the weights between a separate pass
and the update: both compute the same numbers.  The update then takes its old log-probs from itself, and this term
brings them out of whichever backend computes it.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from engine.training.batch import Sample
from engine.training.loss_terms.interface import PolicyOutputs
from engine.training.loss_terms.policy import own_logprobs
from engine.training.microbatch import MicroBatch

__all__ = ["OwnLogprobs", "Scored", "aligned"]

Scored = Sequence[tuple[int, list[float]]]
"""The number of each sample (``Sample.unscored``), and its log-probs up to its micro-batch's last learned token."""


class OwnLogprobs:
    """Adds nothing to the sum and nothing to the weight; what it observes is ``Scored``."""

    needs_reference: ClassVar[bool] = False

    def weight(self, batch: MicroBatch) -> Tensor:
        return torch.zeros((), device=batch.mask_BT.device)

    def loss(self, batch: MicroBatch, outputs: PolicyOutputs) -> Tensor:
        return torch.zeros((), device=batch.mask_BT.device)

    def observed(self, batch: MicroBatch, outputs: PolicyOutputs) -> Scored:
        assert batch.unscored is not None, "samples whose log-probs are known are not scored again"
        return list(zip(batch.unscored, own_logprobs(batch, outputs).tolist(), strict=True))

    def metrics(self, observations: Sequence[Scored]) -> dict[str, float]:
        return {}


def aligned(samples: Sequence[Sample], observations: Sequence[Scored]) -> list[list[float]]:
    """The log-probs of each sample's tokens, of samples in the order of their numbers; 0 outside the mask."""
    rows = [[0.0] * len(sample) for sample in samples]
    for number, logp_T in (scored for observation in observations for scored in observation):
        count = min(len(logp_T), len(rows[number]))
        rows[number][:count] = logp_T[:count]
    return rows
