"""Losses on the tokens that the policy sampled: the recipe's objective, imitation of experts, the KL penalty.

They are terms of one batch, and so one sum over one weight.  The maths stands in ``engine/algorithms``; here a
micro-batch becomes the ``PolicyTokens`` that it is written for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engine.algorithms.aggregation import aggregated
from engine.algorithms.chunks import chunk_numbers
from engine.algorithms.kl import kl_to_reference
from engine.algorithms.losses import ExpertImitation
from engine.algorithms.objectives import PolicyObjective, PolicyTokens
from engine.algorithms.ratios import kl_k3
from engine.spec.objective import Aggregation, Kl
from engine.training.loss_terms.interface import PolicyOutputs
from engine.training.metrics import UpdateObservation, update_metrics, update_observation
from engine.training.microbatch import MicroBatch

__all__ = ["ImitationLoss", "KlPenalty", "PolicyLoss", "columns_of", "own_logprobs", "tokens_of"]


def columns_of(batch: MicroBatch) -> PolicyTokens:
    """The tokens at the policy from before the update: masks and weights never ask the present one.

    Of rows that are unscored the log-probs are no log-probs; only what does not read them may be asked.
    """
    return _tokens(batch, batch.old_logp_BT, batch.old_logp_BT, None)


def tokens_of(batch: MicroBatch, outputs: PolicyOutputs) -> PolicyTokens:
    """The tokens at the present policy, which is the one before the update where the rows are unscored."""
    old_logp_BT = batch.old_logp_BT if batch.unscored is None else own_logprobs(batch, outputs)
    return _tokens(batch, outputs.logp_BT, old_logp_BT, outputs.reference_logp_BT)


def own_logprobs(batch: MicroBatch, outputs: PolicyOutputs) -> Tensor:
    """The log-probs of a forward pass without gradient; 0 outside the mask, as a separate pass gives them."""
    return outputs.logp_BT.detach().where(batch.mask_BT, 0.0)


def _tokens(batch: MicroBatch, logp_BT: Tensor, old_logp_BT: Tensor, reference_logp_BT: Tensor | None) -> PolicyTokens:
    return PolicyTokens(
        logp_BT=logp_BT,
        logp_old_BT=old_logp_BT,
        advantages_BT=batch.advantages_BT,
        mask_BT=batch.mask_BT,
        logp_rollout_BT=batch.rollout_logp_BT,
        logp_reference_BT=reference_logp_BT,
        chunk_BT=chunk_numbers(batch.scored_BT),
        expert_BT=batch.expert_BT,
        boosted_BT=batch.boosted_BT,
        kept_BT=batch.kept_BT,
        penalised_BT=batch.penalised_BT,
        trained_tokens_B=batch.trained_tokens_B,
        imitated_tokens_B=batch.imitated_tokens_B,
    )


@dataclass(frozen=True)
class PolicyLoss:
    """The recipe's objective on the policy's own tokens.  Its metrics are those of ``update_metrics``."""

    objective: PolicyObjective
    needs_reference: ClassVar[bool] = False

    def weight(self, batch: MicroBatch) -> Tensor:
        return self.objective.loss(columns_of(batch))[1]

    def loss(self, batch: MicroBatch, outputs: PolicyOutputs) -> Tensor:
        return self.objective.loss(tokens_of(batch, outputs))[0]

    def observed(self, batch: MicroBatch, outputs: PolicyOutputs) -> UpdateObservation | None:
        entropy_N = outputs.entropy_N[batch.mask_BT[batch.scored_BT]]
        return update_observation(self.objective, tokens_of(batch, outputs), entropy_N)

    def metrics(self, observations: Sequence[UpdateObservation | None]) -> dict[str, float]:
        return update_metrics(observations)


@dataclass(frozen=True)
class ImitationLoss:
    """Imitation of the turns of an expert that a rollout began with.  It has no metrics."""

    imitation: ExpertImitation
    needs_reference: ClassVar[bool] = False

    def weight(self, batch: MicroBatch) -> Tensor:
        return self.imitation.loss(columns_of(batch))[1]

    def loss(self, batch: MicroBatch, outputs: PolicyOutputs) -> Tensor:
        return self.imitation.loss(tokens_of(batch, outputs))[0]

    def observed(self, batch: MicroBatch, outputs: PolicyOutputs) -> None:
        return None

    def metrics(self, observations: Sequence[None]) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class KlPenalty:
    """A penalty for leaving the reference, on every token that the objective trains, weighed as it weighs them.

    It adds to the sum and not to the weight.  Its metric ``kl_to_reference`` is the mean k3 over the sampled tokens.
    """

    kl: Kl
    objective: PolicyObjective
    aggregation: Aggregation
    max_response_tokens: int
    needs_reference: ClassVar[bool] = True

    def weight(self, batch: MicroBatch) -> Tensor:
        return torch.zeros(())

    def loss(self, batch: MicroBatch, outputs: PolicyOutputs) -> Tensor:
        tokens = tokens_of(batch, outputs)
        assert tokens.logp_reference_BT is not None
        penalties_BT = self.kl.beta * kl_to_reference(tokens.logp_BT, tokens.logp_reference_BT, self.kl.estimator)
        trained_BT = self.objective.trained_BT(tokens)
        total, _ = aggregated(
            penalties_BT,
            trained_BT,
            self.aggregation,
            max_response_tokens=self.max_response_tokens,
            trajectory_tokens_B=tokens.trained_tokens_B,
        )
        return total

    @torch.no_grad()
    def observed(self, batch: MicroBatch, outputs: PolicyOutputs) -> tuple[float, int]:
        assert outputs.reference_logp_BT is not None
        mask_BT = batch.mask_BT
        divergence_N = kl_k3(outputs.reference_logp_BT[mask_BT], outputs.logp_BT[mask_BT])
        return divergence_N.sum().item(), len(divergence_N)

    def metrics(self, observations: Sequence[tuple[float, int]]) -> dict[str, float]:
        tokens = sum(count for _, count in observations)
        return {"kl_to_reference": sum(total for total, _ in observations) / tokens} if tokens else {}
