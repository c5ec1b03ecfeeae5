"""Credit from a critic: generalised advantage estimation, and what the critic learns.

Shapes: B sequences, T tokens.  Only the sampled tokens (``mask_BT``) are steps of the decision process:
prompt and tool output between them are skipped, so an estimate flows over a tool call undiscounted.
"""

import torch
from torch import Tensor

from engine.algorithms.aggregation import aggregated


def generalised_advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Advantages and the critic's targets (GAE, arXiv:1506.02438, eq. 16), both 0 outside the mask.

    delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1},  target_t = A_t + V_t,
    with t + 1 the next *sampled* token and V = 0 after the last one.  A reward must stand on a sampled
    token; elsewhere it is not seen.  PPO whitens the advantages afterwards (whitening.py).
    """
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B = next_advantage_B = torch.zeros_like(values_BT[:, 0])
    for t in reversed(range(values_BT.shape[1])):
        sampled_B, value_B = mask_BT[:, t], values_BT[:, t]
        delta_B = rewards_BT[:, t] + gamma * next_value_B - value_B
        next_advantage_B = torch.where(sampled_B, delta_B + gamma * lam * next_advantage_B, next_advantage_B)
        next_value_B = torch.where(sampled_B, value_B, next_value_B)
        advantages_BT[:, t] = next_advantage_B
    advantages_BT = advantages_BT.where(mask_BT, 0.0)
    return advantages_BT, (advantages_BT + values_BT).where(mask_BT, 0.0)


def critic_loss(
    values_BT: Tensor, values_old_BT: Tensor, targets_BT: Tensor, mask_BT: Tensor, *, clip: float | None = 0.5
) -> tuple[Tensor, Tensor]:
    """``(sum, weight)`` of max((V - target)^2, (V_clipped - target)^2) / 2 over the sampled tokens.

    V_clipped stays within +-``clip`` of the value before the update, as in the reference code of PPO
    (arXiv:1707.06347); without ``clip`` it is plain regression.
    """
    errors_BT = (values_BT - targets_BT).square()
    if clip is not None:
        near_BT = values_old_BT + (values_BT - values_old_BT).clamp(-clip, clip)
        errors_BT = torch.maximum(errors_BT, (near_BT - targets_BT).square())
    return aggregated(errors_BT / 2, mask_BT, "token-mean", max_response_tokens=1)
