"""The rollouts of one prompt from one start: planned, compared, held back and credited together.

planner: GroupPlan ──► rollouts ──► RolloutGroup ──► filters ──► judge ──► advantages
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from engine.spec.trajectory import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Prefill:
    """The beginning of an expert's trajectory, to be replayed before the policy takes over."""

    expert: str
    """The id of the expert's trajectory."""
    turns: tuple[Turn, ...]
    """The expert's first turns, each with a tool call, to be done again and compared."""
    of_turns: int
    """All turns of the expert."""
    imitated: int
    """How many of ``turns``, from the first one on, imitation learns in any case."""
    reward: float | None = None
    """What the expert earned."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One task and one start.  Parallel anchors give a task several groups, one for each prefix."""

    prompt: int
    """``Trajectory.prompt`` of its rollouts; no other group of the run has it."""
    version: int
    """The policy version at which it was planned; of a group that starts by itself, the one under which it started, so
    that no token of it is of an earlier one."""
    number: int
    """The group's number in its ``seed_step``, counted over that step's sampling rounds.  Seeds hang on it."""
    tasks_before: int
    """So many tasks the run takes before this one: it takes them in turn, from 0 on and without an end."""
    task: int
    prefill: Prefill | None = None
    """None: the rollouts begin at the start of the task."""
    from_expert: bool = False
    """It is one of the starts of a task that has an expert, the fresh one among them."""
    crucial: bool = False
    """Which turn of the expert is crucial is known."""
    seed_version: int | None = None
    """The version that its seeds hang on, where that is not ``version``: a group of an asynchronous run draws the same
    whenever it starts."""

    @property
    def seed_step(self) -> int:
        """The step whose seeds it has."""
        return (self.version if self.seed_version is None else self.seed_version) + 1

    @property
    def step(self) -> int:
        """The first step that can train on it: the one after ``version`` updates."""
        return self.version + 1

    @property
    def replayed(self) -> Sequence[Turn]:
        return () if self.prefill is None else self.prefill.turns


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """What came of a plan.  ``rollouts`` are those that came back, in the order of their requests; perhaps none."""

    plan: GroupPlan
    rollouts: tuple[Trajectory, ...]

    def with_rollouts(self, rollouts: Iterable[Trajectory]) -> Self:
        return replace(self, rollouts=tuple(rollouts))

    @property
    def successes(self) -> int:
        return sum(rollout.success for rollout in self.rollouts)

    @property
    def rewards(self) -> list[float]:
        return [rollout.reward for rollout in self.rollouts]


def rollouts_in(groups: Iterable[RolloutGroup]) -> list[Trajectory]:
    """All rollouts, group by group."""
    return [rollout for group in groups for rollout in group.rollouts]
