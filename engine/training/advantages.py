"""From the trajectories of a step to one advantage per sampled token, by the recipe's credit.

Which estimators there are stands in engine/spec/credit.py, how each computes in engine/training/estimators, and
the maths in engine/algorithms.  Nothing here knows one of them.
"""

from collections.abc import Sequence

from engine.spec.estimator import Estimator
from engine.spec.rollout_group import RolloutGroup
from engine.training.estimators.interface import Computation, Occasion, TurnAdvantages, named


def token_advantages(credit: Estimator, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]:
    """Per rollout, group by group, turn by turn.

    Tokens that an expert wrote get 0, except from chunk returns.
    Raises RunFailed where an estimator of somebody's own does not give one finite number for each.
    """
    computation: Computation = named(credit.computed_by)
    return computation(credit, groups, occasion)
