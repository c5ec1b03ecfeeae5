"""Advantage estimators: how the rewards of rollouts become advantages, whatever their structure.

    GroupEstimator    one number per rollout, from the rewards of its group
    TurnEstimator     one number per turn, from the rollouts of its group
    TokenEstimator    one number per token, from a rollout's reward and the values of a critic

One of one's own is a module beside this one and an entry in ``credit.py``: a table with a kind, its fields, and a
function of plain numbers.  It is found by the form, REST and the files of runs like any other part of a recipe.
Those whose maths needs tensors name in ``computed_by`` where that stands; nothing else tells them from others.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from engine.spec.requirement import Part, Requirement, Requirements, at_least
from engine.spec.strict import OUT_OF_REACH
from engine.spec.trajectory import Trajectory

COMPARES_A_GROUP = Requirement(
    "schedule.group_size",
    at_least(2),
    "{kind} compares the rollouts of a group, and a group of 1 has nothing to compare",
    "use at least 2, 8 is usual",
    field="schedule.group_size",
    given="recipe.reinforces",
)


class Estimator(Part):
    """An entry among the credits of a recipe."""

    computed_by: ClassVar[str]
    """``module:function`` of an ``engine.training.estimators.interface.Computation``, imported when it is needed."""

    kind: str
    """Its name in recipes; each estimator declares its own as a ``Literal``."""

    def compares_a_group(self) -> bool:
        """Return whether the advantage is exactly 0 in a group of one."""
        return any(needed.of == COMPARES_A_GROUP.of and needed.when(self) for needed in self.requires_of_run)

    def whitens_a_step(self) -> bool:
        """Return whether an advantage is measured against all rollouts of a step, so a group alone has no true one."""
        return False


class GroupEstimator(Estimator):
    """One advantage for each rollout of a group, which all of its sampled tokens get."""

    requires_of_run: ClassVar[Requirements] = (COMPARES_A_GROUP,)
    computed_by: ClassVar[str] = "engine.training.estimators.plain:of_groups"

    @abstractmethod
    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """One for each reward, in their order.  Equal rewards must give exactly 0: such a group teaches nothing."""


class TurnEstimator(Estimator):
    """One advantage for each turn that the policy wrote, which all tokens of the turn get.

    One that does not compare the rollouts of a group says so: ``requires_of_run = ()``.
    """

    requires_of_run: ClassVar[Requirements] = (COMPARES_A_GROUP,)
    computed_by: ClassVar[str] = "engine.training.estimators.plain:of_turns"

    @abstractmethod
    def advantages(self, rollouts: Sequence[Trajectory]) -> list[list[float]]:
        """For each rollout of one group, in their order, one for each of its turns that is not ``prefilled``."""


class CriticEstimator(Estimator):
    """One advantage for each token that the policy sampled, from a critic: a second model of the policy's shape."""

    computed_by: ClassVar[str] = "engine.training.estimators.critic:advantages"
    estimated_by: ClassVar[str]
    """``module:function`` of an ``engine.training.estimators.critic.Estimation``."""

    whiten: bool = True
    """Bring the advantages of a step to mean 0 and std 1, as PPO's reference code does."""
    critic_learning_rate: float = Field(default=1e-3, gt=0, le=1)
    """The learning rate of the critic's own optimiser, constant."""
    value_clip: float | None = Field(default=0.5, gt=0, le=OUT_OF_REACH)
    """The critic's value may move this far per step before its loss stops rewarding it; absent: plain regression."""

    def whitens_a_step(self) -> bool:
        return self.whiten


class TokenEstimator(CriticEstimator):
    """Advantages and returns of tokens in plain numbers."""

    estimated_by: ClassVar[str] = "engine.training.estimators.critic:in_plain_numbers"

    @abstractmethod
    def estimates(self, rewards: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
        """Advantages and returns, one each for every token of one rollout that the policy sampled.

        A return is what the critic should have said.  ``rewards`` are 0 but for the last one.
        """
