"""Exploration: what a rollout starts from, what it is shown, and how its mistakes are undone."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from engine.spec.pinned_file import PinnedFile
from engine.spec.requirement import Part, Requirement, Requirements, absent, needs_observations, one_of
from engine.spec.strict import MOST_THINGS, OUT_OF_REACH, Strict


class Purification(Part):
    """SAAR: a failed tool call is rolled back and replaced by the policy's own correction (CLEANER, section 4)."""

    one_segment: ClassVar[str | None] = (
        "a correction is put behind the history in which the call failed, and that must be what it had read"
    )
    requires_of_run: ClassVar[Requirements] = (
        needs_observations("purification", field="recipe.purification"),
        Requirement(
            "environment.can_be_restored",
            one_of(True),
            "purification sets the sandbox back before each correction, and this sandbox keeps no snapshots",
            "set environment.sandbox.snapshots = true, or remove purification",
        ),
    )
    share: float = Field(default=1.0, ge=0, le=1)
    """rho: the share of trajectories on which it works; the paper: 1.0 (4B), 0.7 (7B).  0 is its absence."""
    retries: int = Field(default=3, ge=1, le=16)
    """K: corrections that are tried per failed call."""
    similarity: float = Field(default=0.5, ge=0, le=1)
    """gamma: from here on only the call is replaced (shallow), below it the reasoning too (deep)."""
    in_evaluation: bool = False
    """Evaluate a third time with it, under a name of its own (``eval/success_purified``)."""


class ExperienceItem(Strict):
    """One item of experience of earlier rollouts (AgentEvolver, 4.1)."""

    when_to_use: str = Field(min_length=1, max_length=2000)
    """What a question is compared with."""
    content: str = Field(min_length=1, max_length=4000)
    """What the policy reads."""


class Experience(Part):
    """Some rollouts are shown experience that training does not see (AgentEvolver, 4.2 and 4.3)."""

    requires: ClassVar[Requirements] = (
        Requirement(
            "objective.kind",
            one_of("clipped"),
            "selective boosting widens the upper clip, and {value} has none of that form",
            'use objective.kind = "clipped", or remove experience',
        ),
        Requirement(
            "objective.clips",
            one_of(True, None),
            "selective boosting widens the upper clip, and a covariance penalty (KL-Cov) takes the place of all clips",
            'use experience.training = "keep", or another objective.covariance',
            when=lambda experience: experience.training != "keep",
        ),
        Requirement(
            "objective.clip_high",
            lambda clip_high, experience: clip_high is None or experience.boosted_clip_high >= clip_high,
            "what was stripped would be clipped more narrowly than the rest, at {value:g}",
            "use at least {value:g}",
            field="experience.boosted_clip_high",
            when=lambda experience: experience.training != "keep",
        ),
        Requirement(
            "expert_starts",
            absent,
            "a rollout cannot both be shown experience and begin inside an expert's trajectory, whose tokens were "
            "sampled without it",
            "remove experience or expert_starts",
        ),
    )
    pool: list[ExperienceItem] = Field(min_length=1)
    """The experience."""
    top_k: int = Field(default=5, ge=1, le=64)
    """How many are shown, those first whose ``when_to_use`` is nearest to the question."""
    share: float = Field(default=0.5, ge=0, le=1)
    """eta: the share of a group's rollouts that is shown them, at least one rollout.  0 is its absence."""
    training: Literal["strip", "keep", "hybrid"] = "strip"
    """``strip``: taken out of what is trained on.  ``keep``: left in.  ``hybrid``: left in where A <= 0."""
    boosted_clip_high: float = Field(default=0.6, ge=0, le=OUT_OF_REACH)
    """The upper clip where experience was stripped and A > 0 (eq. 17).

    It acts from a step's second minibatch on: old log-probs are recomputed without the experience, so that the first
    ratios are 1.  A step of one minibatch never meets it.
    """

    @property
    def longest_tokens(self) -> int:
        """No prompt has more tokens of experience: a token is a character at least."""
        shown = sorted((len(item.content) for item in self.pool), reverse=True)[: self.top_k]
        return sum(shown) + len("\n") * (len(shown) - 1) + len("<EXP></EXP>\n")


class SequentialRollback(Strict):
    """Start near the end of an expert's trajectory, and move to its head as success rises (ALE, 3.2.4.4)."""

    kind: Literal["sequential"] = "sequential"
    threshold: float = Field(default=0.5, gt=0, le=1)
    """Success rate from which the start moves one turn towards the head.  The paper gives no value."""


class ParallelAnchors(Strict):
    """Start several rollouts from each of several turns of an expert's trajectory (ALE, 3.2.4.4)."""

    kind: Literal["parallel"] = "parallel"
    anchors: int = Field(default=4, ge=1, le=64)
    """Turns to start from; a fresh start is one of them where there are two or more."""
    how: Literal["uniform", "random"] = "uniform"
    """Evenly over the expert's turns, or drawn anew in each step (ALE, 3.2.4.4)."""


class ExpertStarts(Part):
    """Rollouts that begin in the middle of a trajectory that succeeded.

    Experts are the policy's own latest successes, task by task, or else a teacher's; their actions are replayed in a
    fresh environment, and a replay whose observations differ is discarded and counted.
    """

    one_segment: ClassVar[str | None] = (
        "the policy takes over behind an expert's turns, and must have before it all that the expert had"
    )
    requires_of_run: ClassVar[Requirements] = (
        needs_observations("expert_starts", field="recipe.expert_starts"),
        *(
            Requirement(
                f"schedule.{name}",
                one_of(0),
                "sequential rollback starts a task where its last group has shown how far the policy is, and with "
                f"schedule.{name} = {{value}} that group may still be in play",
                f'use {name} = 0, or recipe.expert_starts.how.kind = "parallel"',
                field=f"schedule.{name}",
                when=lambda part: part.how.kind == "sequential",
            )
            for name in ("async_ratio", "redundant_members", "redundant_groups")
        ),
    )
    how: Annotated[SequentialRollback | ParallelAnchors, Field(discriminator="kind")] = ParallelAnchors()
    """From which of its turns."""
    share: float = Field(default=0.5, gt=0, le=1)
    """The share of a step's groups that may start from an expert, if their task has one; at least one group."""
    demonstrations: bool = True
    """Also take scripted solutions of the environment as experts, for tasks that the policy never solved and no
    teacher did."""
    teacher: PinnedFile | None = None
    """A file of trajectories, or of a run's events, one JSON document a line: another model's successes, which are
    experts until the policy has one of its own (ALE, 3.2.4.4).  They are written in this run's tokens; those that its
    model cannot write are left out and counted.  Absent: no teacher."""
    teacher_thoughts: bool = True
    """Whether what the teacher wrote before its calls is taken over; false: the calls alone."""
    experts: int = Field(default=1024, ge=1, le=MOST_THINGS)
    """Tasks for which an expert is kept, latest first."""
    crucial_level: float = Field(default=0.05, gt=0, lt=1)
    """Significance at which a turn counts as crucial: imitation covers the expert up to and including it.

    Where no rollout of a group succeeds, it covers all that the group replayed.
    """
