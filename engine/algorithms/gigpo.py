"""GiGPO: credit within the group of a prompt, and within groups of steps taken from the same state.

arXiv:2505.10978.  Everything here is about *one* prompt: G trajectories with K steps each, K differing.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor

from engine.algorithms.chunk_return import discounted_returns
from engine.algorithms.credit import group_relative_advantages

EpisodeMean = Literal["trajectories", "steps"]


def gigpo_advantages(
    step_rewards: Sequence[Tensor],
    anchors: Sequence[Sequence[Hashable]],
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    scale_by_std: bool = True,
    episode_mean: EpisodeMean = "trajectories",
) -> list[Tensor]:
    """A = A_E + w A_S of each step of each trajectory.

    ``step_rewards[i]`` are the K rewards of trajectory i, ``anchors[i]`` the K observations it acted on.
    Raises ValueError where the two differ in length or a trajectory has no step.
    """
    if any(len(rewards) != len(seen) for rewards, seen in zip(step_rewards, anchors, strict=True)):
        raise ValueError("every step needs the observation it acted on")
    if any(len(rewards) == 0 for rewards in step_rewards):
        raise ValueError("a trajectory has at least one step")
    episode_G = episode_advantages(step_rewards, scale_by_std=scale_by_std, mean_over=episode_mean)
    steps = step_advantages(step_rewards, anchors, gamma=gamma, scale_by_std=scale_by_std)
    return [episode + step_weight * step_K for episode, step_K in zip(episode_G, steps, strict=True)]


def episode_advantages(
    step_rewards: Sequence[Tensor], *, scale_by_std: bool = True, mean_over: EpisodeMean = "trajectories"
) -> Tensor:
    """A_E [G]: the undiscounted return of each trajectory relative to its group.

    ``mean_over="steps"`` counts a trajectory once per step in mean and std, as the public code does: long
    episodes then weigh more.
    """
    returns_G = torch.stack([rewards_K.sum() for rewards_K in step_rewards])
    if mean_over == "trajectories":
        return group_relative_advantages(returns_G[None], scale_by_std=scale_by_std)[0]
    steps_G = torch.tensor([len(rewards_K) for rewards_K in step_rewards])
    rows = group_relative_advantages(returns_G.repeat_interleave(steps_G)[None], scale_by_std=scale_by_std)[0]
    return rows[steps_G.cumsum(0) - 1]


def step_advantages(
    step_rewards: Sequence[Tensor],
    anchors: Sequence[Sequence[Hashable]],
    *,
    gamma: float = 0.95,
    scale_by_std: bool = True,
) -> list[Tensor]:
    """A_S: discounted step returns relative to the steps that saw the same observation.

    A state seen once has nothing to be compared with: its step gets exactly 0.
    """
    lengths = [len(rewards_K) for rewards_K in step_rewards]
    returns_S = torch.cat([discounted_returns(rewards_K, gamma=gamma) for rewards_K in step_rewards])
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, anchor in enumerate(anchor for seen in anchors for anchor in seen):
        places[anchor].append(place)
    advantages_S = torch.zeros_like(returns_S)
    for members in places.values():
        advantages_S[members] = group_relative_advantages(returns_S[members][None], scale_by_std=scale_by_std)[0]
    return list(advantages_S.split(lengths))
