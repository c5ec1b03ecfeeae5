"""Attribution: a judge's verdict on each turn, beside the outcome."""

from collections.abc import Sequence

import torch

from engine.algorithms.attribution import attribution_advantages
from engine.algorithms.curriculum import attribution_weight
from engine.spec.credit import Attribution
from engine.spec.rollout_group import RolloutGroup
from engine.spec.trajectory import Trajectory
from engine.training.estimators.interface import Occasion, TurnAdvantages, by_group, steps_of

LABELS = {"good": 1.0, "bad": -1.0}


def advantages(credit: Attribution, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]:
    alpha = attribution_weight(occasion.step, credit.decay_steps, alpha=credit.alpha)
    return by_group(groups, lambda acting: _of_steps(credit, alpha, acting))


def _of_steps(credit: Attribution, alpha: float, group: Sequence[Trajectory]) -> list[list[float]]:
    """A turn without a verdict anywhere in the group makes the judge's channel neutral for the group."""
    labels = [
        None if any(turn.verdict is None for turn in steps_of(rollout))
        else torch.tensor([LABELS[str(turn.verdict)] for turn in steps_of(rollout)])
        for rollout in group
    ]  # fmt: skip
    outcomes_G = torch.tensor([rollout.reward for rollout in group])
    advantages = attribution_advantages(
        labels, [len(steps_of(rollout)) for rollout in group], outcomes_G, alpha=alpha, scale=credit.scale
    )
    return [advantages_K.tolist() for advantages_K in advantages]
