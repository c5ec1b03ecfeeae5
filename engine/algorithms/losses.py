"""From a recipe's objective to its loss on the tokens that the policy sampled.  Shapes: B sequences, T tokens.

What every objective on tokens shares is done here once, in this order:

1. the objective's own token losses, their ratios over all sampled tokens (ALE, eq. 4 and 7);
2. times the mismatch weights; the mismatch mask (mismatch.py) is the mask of what follows;
3. tokens that collapse entropy lose their loss and keep their place in the mean (covariance.py);
4. aggregation (aggregation.py).

What a recipe adds to it (imitation of experts, a penalty for leaving a reference, a replay) is added by the trainer's
loss terms.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.algorithms.aggregation import aggregated
from engine.algorithms.covariance import kl_cov_losses
from engine.algorithms.experience import boosted_surrogate
from engine.algorithms.gspo import gspo_clipped, gspo_losses
from engine.algorithms.ipa import (
    ChunkTokens,
    chunk_reinforcement_loss,
    expert_imitation_loss,
    reinforced_chunks,
    reinforcement_ratios,
)
from engine.algorithms.mismatch import corrected, mismatch_keep, mismatch_weights
from engine.algorithms.objectives import PolicyObjective, PolicyTokens, clipped_surrogate, cut_by_clip
from engine.algorithms.ratios import RatioSize, ratios_of, token_ratios
from engine.algorithms.weighted_gradients import cispo_losses, tis_losses, topr_losses
from engine.spec.objective import (
    Aggregation,
    Cispo,
    Clipped,
    CovarianceKl,
    Gspo,
    Ipa,
    Mismatch,
    Objective,
    Tis,
    Topr,
)


def objective_for(
    objective: Objective,
    *,
    max_response_tokens: int,
    mismatch: Mismatch | None = None,
    boosted_clip_high: float | None = None,
    stale: bool = False,
) -> PolicyObjective:
    """``boosted_clip_high`` is the upper clip where experience was stripped (``PolicyTokens.boosted_BT``); ``stale``,
    whether rollouts may be of older policies than the one before the update.

    Raises ValueError for dpo, which compares pairs (preference.py), and for none.
    """
    token_losses: TokenLosses
    mismatch = mismatch or Mismatch()
    match objective:
        case Clipped():
            token_losses = ClippedLosses(objective, boosted_clip_high)
        case Gspo():
            token_losses = GspoLosses(objective)
        case Cispo():
            token_losses = CispoLosses(objective)
        case Tis() | Topr():
            token_losses = TruncatedLosses(objective, of_rollout=_is_to_rollout(objective, mismatch, stale))
        case Ipa():
            of_rollout = _is_to_rollout(objective, mismatch, stale)
            return ChunkObjective(objective, max_response_tokens, of_rollout=of_rollout)
        case _:
            raise ValueError(f"{objective.kind} has no loss on sampled tokens")
    return TokenObjective(token_losses, objective.aggregation, max_response_tokens, mismatch)


def _is_to_rollout(objective: Tis | Topr | Ipa, mismatch: Mismatch, stale: bool) -> bool:
    """Whether its ratios are to the policy that sampled."""
    if objective.ratio_to == "auto":
        return stale and mismatch.weight is None
    return objective.ratio_to == "rollout"


class TokenLosses(Protocol):
    """What one kind of objective says about single tokens."""

    def losses_BT(self, tokens: PolicyTokens) -> Tensor: ...

    def clipped_BT(self, tokens: PolicyTokens) -> Tensor: ...


@dataclass(frozen=True)
class TokenObjective:
    token_losses: TokenLosses
    aggregation: Aggregation
    max_response_tokens: int
    """The constant of ``seq-mean-token-sum-norm``."""
    mismatch: Mismatch

    def loss(self, tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
        losses_BT = corrected(self.token_losses.losses_BT(tokens), self._mismatch_weights(tokens))
        if tokens.kept_BT is not None:
            losses_BT = losses_BT.where(tokens.kept_BT, 0.0)
        mask_BT = self.trained_BT(tokens)
        return aggregated(
            losses_BT,
            mask_BT,
            self.aggregation,
            max_response_tokens=self.max_response_tokens,
            trajectory_tokens_B=tokens.trained_tokens_B,
        )

    def trained_BT(self, tokens: PolicyTokens) -> Tensor:
        if self.mismatch.mask is None:
            return tokens.mask_BT
        ratio_BT = mismatch_ratios(tokens, self.mismatch.mask)
        return mismatch_keep(ratio_BT, tokens.mask_BT, bound=self.mismatch.mask_bound)

    def clipped_BT(self, tokens: PolicyTokens) -> Tensor:
        cut_BT = self.token_losses.clipped_BT(tokens)
        if tokens.kept_BT is not None:
            cut_BT = cut_BT | ~tokens.kept_BT
        return cut_BT & self.trained_BT(tokens)

    def _mismatch_weights(self, tokens: PolicyTokens) -> Tensor | None:
        if self.mismatch.weight is None:
            return None
        ratio_BT = mismatch_ratios(tokens, self.mismatch.weight)
        return mismatch_weights(ratio_BT, tokens.mask_BT, bound=self.mismatch.weight_bound)


def mismatch_ratios(tokens: PolicyTokens, size: RatioSize) -> Tensor:
    """exp(logp_old - logp_rollout), of a size."""
    assert tokens.logp_rollout_BT is not None
    return ratios_of(size, tokens.logp_old_BT, tokens.logp_rollout_BT, tokens.mask_BT, tokens.chunk_BT)


@dataclass(frozen=True)
class ClippedLosses:
    """The clipped surrogate; its wider clip on stripped tokens; or KL-Cov, which has a penalty and no clip."""

    spec: Clipped
    boosted_clip_high: float | None

    def losses_BT(self, tokens: PolicyTokens) -> Tensor:
        ratio_BT, spec = token_ratios(tokens.logp_BT, tokens.logp_old_BT), self.spec
        if tokens.penalised_BT is not None:
            assert isinstance(spec.covariance, CovarianceKl)
            return kl_cov_losses(
                tokens.logp_BT, tokens.logp_old_BT, tokens.advantages_BT, ratio_BT, tokens.penalised_BT,
                beta=spec.covariance.beta,
            )  # fmt: skip
        if tokens.boosted_BT is None or self.boosted_clip_high is None:
            return clipped_surrogate(
                ratio_BT,
                tokens.advantages_BT,
                clip_low=spec.clip_low,
                clip_high=spec.clip_high,
                dual_clip=spec.dual_clip,
            )
        return boosted_surrogate(
            ratio_BT,
            tokens.advantages_BT,
            tokens.boosted_BT,
            clip_low=spec.clip_low,
            clip_high=spec.clip_high,
            boosted_clip_high=self.boosted_clip_high,
            dual_clip=spec.dual_clip,
        )

    def clipped_BT(self, tokens: PolicyTokens) -> Tensor:
        if tokens.penalised_BT is not None:
            return torch.zeros_like(tokens.mask_BT)
        clip_high: float | Tensor = self.spec.clip_high
        if tokens.boosted_BT is not None and self.boosted_clip_high is not None:
            clip_high = torch.where(tokens.boosted_BT, self.boosted_clip_high, clip_high)
        return cut_by_clip(
            token_ratios(tokens.logp_BT, tokens.logp_old_BT),
            tokens.advantages_BT,
            clip_low=self.spec.clip_low,
            clip_high=clip_high,
            dual_clip=self.spec.dual_clip,
        )


@dataclass(frozen=True)
class GspoLosses:
    spec: Gspo

    def losses_BT(self, tokens: PolicyTokens) -> Tensor:
        return gspo_losses(tokens, clip_low=self.spec.clip_low, clip_high=self.spec.clip_high)

    def clipped_BT(self, tokens: PolicyTokens) -> Tensor:
        return gspo_clipped(tokens, clip_low=self.spec.clip_low, clip_high=self.spec.clip_high)


@dataclass(frozen=True)
class CispoLosses:
    spec: Cispo

    def losses_BT(self, tokens: PolicyTokens) -> Tensor:
        ratio_BT = token_ratios(tokens.logp_BT, tokens.logp_old_BT)
        return cispo_losses(
            tokens.logp_BT,
            tokens.advantages_BT,
            ratio_BT,
            clip_low=self.spec.clip_low,
            clip_high=self.spec.clip_high,
        )

    def clipped_BT(self, tokens: PolicyTokens) -> Tensor:
        ratio_BT = token_ratios(tokens.logp_BT, tokens.logp_old_BT)
        low = 0.0 if self.spec.clip_low is None else 1 - self.spec.clip_low
        return (ratio_BT > 1 + self.spec.clip_high) | (ratio_BT < low)


@dataclass(frozen=True)
class TruncatedLosses:
    """TIS, and TOPR, which truncates only what is not positive."""

    spec: Tis | Topr
    of_rollout: bool = False
    """Whether its ratios are to the policy that sampled, in place of the one before the update."""

    def losses_BT(self, tokens: PolicyTokens) -> Tensor:
        losses = tis_losses if isinstance(self.spec, Tis) else topr_losses
        return losses(tokens.logp_BT, tokens.advantages_BT, self._ratio_BT(tokens), bound=self.spec.bound)

    def clipped_BT(self, tokens: PolicyTokens) -> Tensor:
        truncated_BT = self._ratio_BT(tokens) > self.spec.bound
        return truncated_BT if isinstance(self.spec, Tis) else truncated_BT & (tokens.advantages_BT <= 0)

    def _ratio_BT(self, tokens: PolicyTokens) -> Tensor:
        to_BT = tokens.logp_rollout_BT if self.of_rollout else tokens.logp_old_BT
        assert to_BT is not None
        return ratios_of(self.spec.ratio, tokens.logp_BT, to_BT, tokens.mask_BT, tokens.chunk_BT)


@dataclass(frozen=True)
class ChunkObjective:
    """IPA's reinforcement of the chunks that the policy sampled; what it imitates beside them is ExpertImitation."""

    spec: Ipa
    max_response_tokens: int
    of_rollout: bool = False
    """Whether rho_c is to the policy that sampled, in place of the one before the update."""

    def loss(self, tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
        return chunk_reinforcement_loss(
            _chunk_tokens(tokens),
            of_rollout=self.of_rollout,
            mismatch_bound=self.spec.mismatch_bound,
            reinforcement_weight=self.spec.reinforcement_weight,
            aggregation=self.spec.aggregation,
            max_response_tokens=self.max_response_tokens,
            trajectory_tokens_B=tokens.trained_tokens_B,
        )

    def trained_BT(self, tokens: PolicyTokens) -> Tensor:
        return reinforced_chunks(_chunk_tokens(tokens), mismatch_bound=self.spec.mismatch_bound)

    def clipped_BT(self, tokens: PolicyTokens) -> Tensor:
        chunks = _chunk_tokens(tokens)
        ratio_BT = reinforcement_ratios(chunks, of_rollout=self.of_rollout)
        return (ratio_BT > 1) & (chunks.returns_BT <= 0) & self.trained_BT(tokens)


@dataclass(frozen=True)
class ExpertImitation:
    """IPA's imitation of an expert's prefilled chunks."""

    spec: Ipa
    max_response_tokens: int

    def loss(self, tokens: PolicyTokens) -> tuple[Tensor, Tensor]:
        """``(sum, weight)``, to be added to those of ``ChunkObjective``: eq. 8 has one weight for both."""
        return expert_imitation_loss(
            _chunk_tokens(tokens),
            imitation_weight=self.spec.imitation_weight,
            aggregation=self.spec.aggregation,
            max_response_tokens=self.max_response_tokens,
            trajectory_tokens_B=tokens.imitated_tokens_B,
        )


def _chunk_tokens(tokens: PolicyTokens) -> ChunkTokens:
    assert tokens.chunk_BT is not None
    assert tokens.logp_rollout_BT is not None
    return ChunkTokens(
        logp_BT=tokens.logp_BT,
        logp_old_BT=tokens.logp_old_BT,
        logp_rollout_BT=tokens.logp_rollout_BT,
        returns_BT=tokens.advantages_BT,
        chunk_BT=tokens.chunk_BT,
        sampled_BT=tokens.mask_BT,
        expert_BT=torch.zeros_like(tokens.mask_BT) if tokens.expert_BT is None else tokens.expert_BT,
    )
