"""GiGPO: the credit of a group's trajectories, and of its steps that acted on the same observation."""

from collections.abc import Sequence

import torch

from engine.algorithms.gigpo import gigpo_advantages
from engine.spec.credit import Gigpo
from engine.spec.rollout_group import RolloutGroup
from engine.spec.trajectory import Trajectory
from engine.training.estimators.interface import Occasion, TurnAdvantages, by_group, steps_of


def advantages(credit: Gigpo, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]:
    return by_group(groups, lambda acting: _of_steps(credit, acting))


def _of_steps(credit: Gigpo, group: Sequence[Trajectory]) -> list[list[float]]:
    """A step is a turn that the policy wrote, its anchor what it read right before, its reward on the last one."""
    rewards = [torch.zeros(len(steps_of(rollout))) for rollout in group]
    for rewards_K, rollout in zip(rewards, group, strict=True):
        rewards_K[-1] = rollout.reward
    advantages = gigpo_advantages(
        rewards,
        [[turn.observation for turn in steps_of(rollout)] for rollout in group],
        gamma=credit.gamma,
        step_weight=credit.step_weight,
        scale_by_std=credit.scale_by_std,
        episode_mean=credit.episode_mean,
    )
    return [advantages_K.tolist() for advantages_K in advantages]
