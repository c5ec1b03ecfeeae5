"""Credit: how the rewards of a group of rollouts become advantages.

Shapes: P prompts, G rollouts per prompt.  ``valid_PG`` is False where an episode was lost; it then
has no reward, counts in no statistic, and its advantage is 0.
"""

import torch
from torch import Tensor

from engine.algorithms.whitening import STD_FLOOR, whitened
from engine.spec.credit import DrGrpo, Grpo, ReinforcePlusPlus, Rloo

OutcomeCredit = Grpo | DrGrpo | Rloo | ReinforcePlusPlus
"""Kinds that give a rollout one advantage, from the rewards alone."""


def advantages_of(credit: OutcomeCredit, rewards_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """The advantage of each rollout [P, G] by the recipe's kind of credit."""
    match credit.kind:
        case "grpo":
            return group_relative_advantages(rewards_PG, valid_PG)
        case "dr-grpo":
            return group_relative_advantages(rewards_PG, valid_PG, scale_by_std=False)
        case "rloo":
            return leave_one_out_advantages(rewards_PG, valid_PG)
        case "reinforce-pp":
            return whitened_advantages(rewards_PG, valid_PG, group_baseline=credit.group_baseline)


def group_relative_advantages(
    rewards_PG: Tensor, valid_PG: Tensor | None = None, *, scale_by_std: bool = True, unbiased_std: bool = False
) -> Tensor:
    """GRPO, A = (R - mean R) / (std R + eps) within the group, std of the population (arXiv:2402.03300, 4.1.2).

    Dr. GRPO (arXiv:2503.20783) leaves the division out.  A group whose rewards are all equal teaches
    nothing and gets exactly 0.  ``unbiased_std`` divides the variance by n - 1, as most public code does.
    """
    valid_PG = _all_valid(rewards_PG) if valid_PG is None else valid_PG
    count_P1 = valid_PG.sum(1, keepdim=True).clamp(min=1)
    mean_P1 = rewards_PG.where(valid_PG, 0.0).sum(1, keepdim=True) / count_P1
    centered_PG = (rewards_PG - mean_P1).where(valid_PG, 0.0)
    if scale_by_std:
        freedom_P1 = (count_P1 - 1).clamp(min=1) if unbiased_std else count_P1
        centered_PG = centered_PG / ((centered_PG.square().sum(1, keepdim=True) / freedom_P1).sqrt() + STD_FLOOR)
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


def whitened_advantages(
    rewards_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    group_baseline: bool = False,
    weights_PG: Tensor | None = None,
    unbiased_std: bool = False,
) -> Tensor:
    """REINFORCE++, A = (R - mean R) / (std R + eps) over the whole batch (arXiv:2501.03262).

    ``group_baseline`` is its second variant: R - mean R of the group first, then the same
    whitening; a group of equal rewards then gets exactly 0.  Without it only a whole batch of equal
    rewards does.  ``weights_PG``, the token counts, weighs rollouts as code that whitens tokens does;
    by default every rollout weighs the same.
    """
    valid_PG = _all_valid(rewards_PG) if valid_PG is None else valid_PG
    if group_baseline:
        scores_PG = group_relative_advantages(rewards_PG, valid_PG, scale_by_std=False)
        teaches_PG = _differing(rewards_PG, valid_PG) & valid_PG
    else:
        scores_PG = rewards_PG.where(valid_PG, 0.0)
        teaches_PG = _differing(rewards_PG.reshape(1, -1), valid_PG.reshape(1, -1)) & valid_PG
    weights_PG = valid_PG if weights_PG is None else weights_PG.where(valid_PG, 0)
    return whitened(scores_PG, weights_PG, unbiased_std=unbiased_std).where(teaches_PG, 0.0)


def _differing(rewards_PG: Tensor, valid_PG: Tensor) -> Tensor:
    """[P, 1]: whether the group's valid rewards differ.

    By comparison and not by a floor of the std: seven float32 rewards of 0.7 have a std of 6e-8, not 0.
    """
    highest_P1 = rewards_PG.where(valid_PG, -torch.inf).amax(1, keepdim=True)
    lowest_P1 = rewards_PG.where(valid_PG, torch.inf).amin(1, keepdim=True)
    return highest_P1 > lowest_P1


def _all_valid(rewards_PG: Tensor) -> Tensor:
    return torch.ones_like(rewards_PG, dtype=torch.bool)
