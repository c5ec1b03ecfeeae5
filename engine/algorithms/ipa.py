"""IPA: reinforcement and imitation at the size of an interaction.  Shapes: B sequences, T tokens, K chunks.

A sequence begins with the chunks of an expert, up to and including the crucial one; the policy sampled
the rest.  ALE, section 3.2.4.  Chunks: chunks.py; chunk returns: chunk_return.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.algorithms.aggregation import aggregated
from engine.algorithms.chunks import chunk_means, over_tokens
from engine.algorithms.mismatch import DEFAULT_MASK_BOUND, mismatch_keep
from engine.algorithms.ratios import LOG_RATIO_BOUND, chunk_ratios
from engine.algorithms.weighted_gradients import reinforce_losses, topr_losses
from engine.spec.objective import Aggregation


@dataclass(frozen=True)
class ChunkTokens:
    """A batch as IPA sees it; entries outside the two masks are arbitrary but finite."""

    logp_BT: Tensor
    """Under the parameters being optimised, with gradient."""
    logp_old_BT: Tensor
    """They are the trainer's, frozen before the update."""
    logp_rollout_BT: Tensor
    """They are what the generator reported."""
    returns_BT: Tensor
    """G of the token's chunk: of a sampled one that of its rollout, of an expert's that of the expert."""
    chunk_BT: Tensor
    """The chunk's number, -1 on tokens of none."""
    sampled_BT: Tensor
    """True on the chunks that the policy sampled."""
    expert_BT: Tensor
    """True on the prefilled chunks.  No token is in both."""


def chunk_reinforcement_loss(
    tokens: ChunkTokens,
    *,
    of_rollout: bool = False,
    mismatch_bound: float | None = DEFAULT_MASK_BOUND,
    reinforcement_weight: float = 1.0,
    aggregation: Aggregation = "token-mean",
    max_response_tokens: int = 1,
    trajectory_tokens_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``(sum, weight)`` of lambda_RL L_chunk (eq. 8, right).  Chunks cut by m_c count neither in sum nor in weight.

    The whole loss is (sum of both terms) / (weight of both), so that parts of a batch add up, a batch without expert
    chunks is bit for bit L_chunk alone, and imitation stays where every sampled chunk is masked.
    """
    kept_BT = reinforced_chunks(tokens, mismatch_bound=mismatch_bound)
    total, weight = aggregated(
        chunk_reinforcement_losses(tokens, of_rollout=of_rollout),
        kept_BT,
        aggregation,
        max_response_tokens=max_response_tokens,
        trajectory_tokens_B=trajectory_tokens_B,
    )
    return reinforcement_weight * total, weight


def expert_imitation_loss(
    tokens: ChunkTokens,
    *,
    imitation_weight: float = 0.1,
    aggregation: Aggregation = "token-mean",
    max_response_tokens: int = 1,
    trajectory_tokens_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``(sum, weight)`` of lambda_IL L_IL (eq. 8, left)."""
    total, weight = aggregated(
        imitation_losses(tokens),
        tokens.expert_BT,
        aggregation,
        max_response_tokens=max_response_tokens,
        trajectory_tokens_B=trajectory_tokens_B,
    )
    return imitation_weight * total, weight


def reinforced_chunks(tokens: ChunkTokens, *, mismatch_bound: float | None) -> Tensor:
    """True on the sampled tokens that m_c leaves: chunks whose train/inference ratio is at most H (eq. 7)."""
    if mismatch_bound is None:
        return tokens.sampled_BT
    mismatch_BT = chunk_ratios(tokens.logp_old_BT, tokens.logp_rollout_BT, tokens.chunk_BT)
    return mismatch_keep(mismatch_BT, tokens.sampled_BT, bound=mismatch_bound)


def reinforcement_ratios(tokens: ChunkTokens, *, of_rollout: bool) -> Tensor:
    """rho_c (eq. 6), to the policy before the update or to the one that sampled."""
    to_BT = tokens.logp_rollout_BT if of_rollout else tokens.logp_old_BT
    return chunk_ratios(tokens.logp_BT, to_BT, tokens.chunk_BT)


def chunk_reinforcement_losses(tokens: ChunkTokens, *, of_rollout: bool = False) -> Tensor:
    """-G log pi where G > 0, -[rho_c]_0^1 G log pi elsewhere, rho_c detached (eq. 7, before m_c).

    The paper splits by the sign of the trajectory's reward.  That is the sign of G, unless intrinsic
    rewards were added; then G decides.
    """
    return topr_losses(tokens.logp_BT, tokens.returns_BT, reinforcement_ratios(tokens, of_rollout=of_rollout))


def imitation_losses(tokens: ChunkTokens) -> Tensor:
    """-pi(c) G log pi on the expert's chunks (eq. 8, left), pi(c) the detached geometric mean over the chunk.

    G is what the expert itself came to, a success, whatever the rollout behind it earned: imitation never
    pushes a chunk down.  An expert chunk that the policy finds unlikely is learned slowly, and one it would
    write anyway at full weight.
    """
    logp_BT = tokens.logp_BT.detach()
    likelihood_BT = torch.exp(
        over_tokens(chunk_means(logp_BT, tokens.chunk_BT), tokens.chunk_BT).clamp(-LOG_RATIO_BOUND, 0.0)
    )
    return reinforce_losses(tokens.logp_BT, likelihood_BT * tokens.returns_BT)
