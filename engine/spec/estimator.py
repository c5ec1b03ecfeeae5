"""Advantage estimators that look at the rewards of one group, in plain numbers.

One of them is a module of its own beside this one and an entry in ``credit.py``: a table with a kind, its fields, and
``advantages``.  It is found by the form, REST and the files of runs like any other part of a recipe.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from engine.spec.requirement import Part, Requirement, Requirements, at_least

COMPARES_A_GROUP = Requirement(
    "schedule.group_size",
    at_least(2),
    "{kind} compares the rollouts of a group, and a group of 1 has nothing to compare",
    "use at least 2, 8 is usual",
    field="schedule.group_size",
    given="recipe.reinforces",
)


class GroupEstimator(Part):
    """One advantage for each rollout of a group, which all of its sampled tokens get."""

    requires_of_run: ClassVar[Requirements] = (COMPARES_A_GROUP,)

    @abstractmethod
    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """One for each reward, in their order.  Equal rewards must give exactly 0: such a group teaches nothing."""
