"""SPEAR's self-imitation: learning again from the policy's own good trajectories.  Shapes: B sequences, T tokens.

The buffers are in replay.py, the schedules in curriculum.py, the choice of dropped tokens in covariance.py.
"""

from torch import Tensor

from engine.algorithms.aggregation import aggregated
from engine.algorithms.objectives import PolicyTokens, clipped_surrogate
from engine.algorithms.ratios import token_ratios
from engine.spec.objective import Aggregation


def self_imitation_loss(
    tokens: PolicyTokens,
    keep_BT: Tensor | None,
    *,
    strength: float,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    aggregation: Aggregation = "seq-mean-token-sum-norm",
    max_response_tokens: int = 1,
) -> tuple[Tensor, Tensor]:
    """``(sum, weight)`` of gamma_t times the clipped surrogate on replayed trajectories (eq. 3, 5, 18).

    ``tokens`` hold the *stored* log-probs of the policy that sampled them as ``logp_old_BT`` and the
    recalibrated A~ as advantages; trajectories without A > 0 and A~ > 0 are not in the batch.  Where
    ``keep_BT`` is False the token's loss is 0, though it still counts in the aggregation.  In the paper's
    total (eq. 5) sum / weight is added to that of the on-policy loss, each divided by its own weight.
    """
    losses_BT = clipped_surrogate(
        token_ratios(tokens.logp_BT, tokens.logp_old_BT),
        tokens.advantages_BT,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )
    if keep_BT is not None:
        losses_BT = losses_BT.where(keep_BT, 0.0)
    total, weight = aggregated(
        losses_BT,
        tokens.mask_BT,
        aggregation,
        max_response_tokens=max_response_tokens,
        trajectory_tokens_B=tokens.trained_tokens_B,
    )
    return strength * total, weight
