"""Estimators that say their advantages in plain numbers, for a group's rollouts or for their turns."""

from collections.abc import Sequence

from engine.spec.estimator import GroupEstimator, TurnEstimator
from engine.spec.rollout_group import RolloutGroup
from engine.spec.trajectory import Trajectory
from engine.training.estimators.interface import (
    Occasion,
    TurnAdvantages,
    broadcast,
    by_group,
    check_count,
    one_for_each,
    steps_of,
)


def of_groups(credit: GroupEstimator, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]:
    return [advantages for group in groups for advantages in _of_group(credit, group)]


def of_turns(credit: TurnEstimator, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]:
    return by_group(groups, lambda acting: _of_turns(credit, acting))


def _of_group(credit: GroupEstimator, group: RolloutGroup) -> list[TurnAdvantages]:
    numbers = one_for_each(credit, credit.advantages(group.rewards), len(group.rollouts), "rollouts of a group")
    return [
        broadcast(rollout, [advantage] * len(rollout.turns))
        for rollout, advantage in zip(group.rollouts, numbers, strict=True)
    ]


def _of_turns(credit: TurnEstimator, rollouts: Sequence[Trajectory]) -> list[list[float]]:
    rows = credit.advantages(rollouts)
    check_count(credit, rows, len(rollouts), "rollouts of a group")
    return [
        one_for_each(credit, row, len(steps_of(rollout)), f"turns of {rollout.id}")
        for row, rollout in zip(rows, rollouts, strict=True)
    ]
