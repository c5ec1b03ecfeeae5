"""What every estimator is asked and answers, and what they share: which turns are steps, and whom a group compares.

A trajectory that is masked counts in its group like any other.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from engine.failures import RunFailed
from engine.spec.estimator import Estimator
from engine.spec.rollout_group import RolloutGroup
from engine.spec.trajectory import Trajectory, Turn
from engine.training.batch import Sample

TurnAdvantages = list[list[float]]
"""The advantages of one trajectory, per turn and per token of it."""
Values = Callable[[Sequence[Sample]], list[np.ndarray]]
"""A critic's values, aligned with each sample's tokens."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """When credit is due, and who may be asked."""

    step: int
    """For weights that change over the run."""
    values: Values | None = None
    """Absent where the recipe has no critic."""
    success_reward: float = 1.0
    """What an expert earned whose start does not say so: every expert is a success."""


class Computation(Protocol):
    """Per rollout, group by group.  ``credit`` is the estimator's own table."""

    def __call__(self, credit: Any, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]: ...


def named(path: str) -> Any:
    """Return what ``module:name`` names; the module is imported only now."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def one_for_each(credit: Estimator, numbers: Sequence[float], wanted: int, what: str) -> list[float]:
    """The numbers of an estimator of somebody's own.  Raises RunFailed: another attempt would meet the same."""
    check_count(credit, numbers, wanted, what)
    if not all(map(math.isfinite, numbers)):
        raise RunFailed(f"recipe.credit.kind = {credit.kind}: {list(numbers)} for the {what}; give finite numbers")
    return list(numbers)


def check_count(credit: Estimator, answers: Sequence[object], wanted: int, what: str) -> None:
    if len(answers) != wanted:
        problem = f"{len(answers)} answers for the {wanted} {what}; give one for each"
        raise RunFailed(f"recipe.credit.kind = {credit.kind}: {problem}")


def by_group(
    groups: Sequence[RolloutGroup], step_advantages: Callable[[Sequence[Trajectory]], list[list[float]]]
) -> list[TurnAdvantages]:
    """``step_advantages`` of the rollouts of each group that have a step; those without one get no advantage."""
    return [advantages for group in groups for advantages in _of_one_group(group.rollouts, step_advantages)]


def _of_one_group(
    rollouts: Sequence[Trajectory], step_advantages: Callable[[Sequence[Trajectory]], list[list[float]]]
) -> Iterator[TurnAdvantages]:
    acting = [position for position, rollout in enumerate(rollouts) if steps_of(rollout)]
    computed = step_advantages([rollouts[position] for position in acting]) if acting else []
    advantages = dict(zip(acting, computed, strict=True))
    for position, rollout in enumerate(rollouts):
        remaining = iter(advantages.get(position, ()))
        yield broadcast(rollout, [0.0 if turn.prefilled else next(remaining) for turn in rollout.turns])


def broadcast(trajectory: Trajectory, advantages: Sequence[float]) -> TurnAdvantages:
    """One advantage for each turn to all of its tokens, but to none that an expert wrote."""
    return [
        [0.0 if turn.prefilled else advantage] * len(turn.token_ids)
        for turn, advantage in zip(trajectory.turns, advantages, strict=True)
    ]


def steps_of(trajectory: Trajectory) -> list[Turn]:
    """The turns that the policy wrote."""
    return [turn for turn in trajectory.turns if not turn.prefilled]
