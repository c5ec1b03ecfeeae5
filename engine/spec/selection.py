"""Selection: which rollouts are worth an update, and what takes the place of the others."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from engine.spec.impossible import impossible
from engine.spec.pinned_file import PinnedFile
from engine.spec.requirement import Part, Requirement, Requirements, none_of
from engine.spec.strict import Strict

MaskReason = Literal["overlong", "incomplete", "void-turn", "repetitive", "unreadable"]


class DynamicSampling(Part):
    """Sample further prompts until enough groups have 0 < accuracy < 1 (DAPO, arXiv:2503.14476, eq. 11)."""

    requires: ClassVar[Requirements] = (
        Requirement(
            "credit.kind",
            none_of("gae", "reinforce-pp", "chunk-return"),
            "dynamic sampling keeps groups of mixed success, and {value} also learns from all others",
            "remove dynamic_sampling, or use a credit that compares a group",
        ),
    )
    max_rounds: int = Field(default=4, ge=1, le=64)
    """Batches of prompts per step at most; then the step makes do with what it has.  1 only drops groups."""


class Resampling(Strict):
    """Replace a rollout that teaches nothing by another from the same start (ALE: dynamic trajectory filtering)."""

    repeated_errors: int | None = Field(default=3, ge=2, le=64)
    """A rollout with this many failed tool calls in a row is replaced; absent: only lost ones are."""
    max_tries: int = Field(default=2, ge=1, le=16)
    """Rollouts played in place of one at most.  After the last one, what there is stays, or is discarded if lost."""


class Difficulty(Strict):
    """Train on those tasks alone that the policy solves now and then before RL (CLEANER, 5.1; ALE, 3.2.3).

    Rates at the bounds are dropped: with 0 and 1 those that always or never succeed.
    """

    rollouts: int = Field(default=8, ge=2, le=1024)
    """k: rollouts of each training task, after the supervised start and before the first step.  Not used with
    ``measured``."""
    above: float = Field(default=0.0, ge=0, lt=1)
    """Tasks whose success rate is not above this are too hard."""
    below: float = Field(default=1.0, gt=0, le=1)
    """Tasks whose success rate is not below this are too easy."""
    measured: PinnedFile | None = None
    """The table of an earlier measurement (``python -m engine difficulty``); absent: the run measures first."""

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if self.above >= self.below:
            raise impossible(
                "above",
                self.above,
                f"no success rate is above it and below {self.below:g}",
                f"use less than {self.below:g}, or raise below",
            )
        return self

    def keeps(self, rate: float | None) -> bool:
        """Say whether a task of this success rate is trained on; one that nobody could play is not."""
        return rate is not None and self.above < rate < self.below


class Selection(Strict):
    """All off by default: every rollout that was played is trained on."""

    masks: list[MaskReason] = []
    """Rollouts that are not trained on, though they count in their group's statistics (Dr.BoT; SPEAR, A.8)."""
    keep_groups: float = Field(default=1.0, gt=0, le=1)
    """The share of groups, those whose rewards vary most, that is trained on (Dr.BoT: 0.75; SPEAR, A.8)."""
    dynamic_sampling: DynamicSampling | None = None
    """Absent: one round, and all its groups."""
    resampling: Resampling | None = None
    """Absent: none is replaced."""
    difficulty: Difficulty | None = None
    """Absent: all training tasks."""
