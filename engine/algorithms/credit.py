"""Credit: how the rewards of a group of rollouts become advantages.

Shapes: P prompts, G rollouts per prompt.  ``valid_PG`` is False where an episode was lost; it then
has no reward, counts in no statistic, and its advantage is 0.
"""

import torch
from torch import Tensor

from engine.spec.recipe import Credit

STD_FLOOR = 1e-6


def advantages_of(credit: Credit, rewards_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """The advantage of each rollout [P, G] by the recipe's kind of credit."""
    match credit.kind:
        case "grpo":
            return group_relative_advantages(rewards_PG, valid_PG)
        case "dr-grpo":
            return group_relative_advantages(rewards_PG, valid_PG, scale_by_std=False)
        case "rloo":
            return leave_one_out_advantages(rewards_PG, valid_PG)


def group_relative_advantages(
    rewards_PG: Tensor, valid_PG: Tensor | None = None, *, scale_by_std: bool = True
) -> Tensor:
    """GRPO, A = (R - mean R) / (std R + eps) within the group, std of the population (arXiv:2402.03300, 4.1.2).

    Dr. GRPO (arXiv:2503.20783) leaves the division out.  A group whose rewards are all equal teaches
    nothing and gets exactly 0.
    """
    valid_PG = _all_valid(rewards_PG) if valid_PG is None else valid_PG
    count_P1 = valid_PG.sum(1, keepdim=True).clamp(min=1)
    mean_P1 = rewards_PG.where(valid_PG, 0.0).sum(1, keepdim=True) / count_P1
    centered_PG = (rewards_PG - mean_P1).where(valid_PG, 0.0)
    if scale_by_std:
        centered_PG = centered_PG / ((centered_PG.square().sum(1, keepdim=True) / count_P1).sqrt() + STD_FLOOR)
    return centered_PG.where(_differing(rewards_PG, valid_PG), 0.0)


def leave_one_out_advantages(rewards_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """RLOO, A = R - mean of the other rewards of the group (arXiv:2402.14740, eq. 8).

    Equal to n / (n - 1) times Dr. GRPO's advantage, for n valid members.  Alone in its group, a rollout gets 0.
    """
    valid_PG = _all_valid(rewards_PG) if valid_PG is None else valid_PG
    known_PG = rewards_PG.where(valid_PG, 0.0)
    others_P1 = (valid_PG.sum(1, keepdim=True) - 1).clamp(min=1)
    baseline_PG = (known_PG.sum(1, keepdim=True) - known_PG) / others_P1
    return (known_PG - baseline_PG).where(_differing(rewards_PG, valid_PG) & valid_PG, 0.0)


def _differing(rewards_PG: Tensor, valid_PG: Tensor) -> Tensor:
    """[P, 1]: whether the group's valid rewards differ.

    By comparison and not by a floor of the std: seven float32 rewards of 0.7 have a std of 6e-8, not 0.
    """
    highest_P1 = rewards_PG.where(valid_PG, -torch.inf).amax(1, keepdim=True)
    lowest_P1 = rewards_PG.where(valid_PG, torch.inf).amin(1, keepdim=True)
    return highest_P1 > lowest_P1


def _all_valid(rewards_PG: Tensor) -> Tensor:
    return torch.ones_like(rewards_PG, dtype=torch.bool)
