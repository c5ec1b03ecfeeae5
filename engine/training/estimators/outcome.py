"""One advantage per rollout, from the rewards alone: GRPO, Dr. GRPO, RLOO, REINFORCE++."""

from collections.abc import Sequence

import torch

from engine.algorithms.credit import OutcomeCredit, advantages_of
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.training.estimators.interface import Occasion, TurnAdvantages, broadcast


def advantages(credit: OutcomeCredit, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]:
    return [
        broadcast(rollout, [advantage] * len(rollout.turns))
        for rollout, advantage in zip(rollouts_in(groups), _of_rollouts(credit, groups), strict=True)
    ]


def _of_rollouts(credit: OutcomeCredit, groups: Sequence[RolloutGroup]) -> list[float]:
    """One advantage per rollout, group by group; groups may have lost members."""
    widest = max(len(group.rollouts) for group in groups)
    rewards_PG = torch.zeros(len(groups), widest)
    valid_PG = torch.zeros(len(groups), widest, dtype=torch.bool)
    for row, group in enumerate(groups):
        rewards_PG[row, : len(group.rollouts)] = torch.tensor(group.rewards)
        valid_PG[row, : len(group.rollouts)] = True
    return advantages_of(credit, rewards_PG, valid_PG)[valid_PG].tolist()
