"""Credit: how the rewards of rollouts become advantages."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from engine.spec.estimator import COMPARES_A_GROUP
from engine.spec.judge import Judge, RuleJudge
from engine.spec.requirement import Part, Requirements, needs_observations
from engine.spec.strict import LARGEST_NUMBER, LONGEST_SCHEDULE, OUT_OF_REACH


class Grpo(Part):
    """A = (R - mean R) / std R inside the group of one prompt (arXiv:2402.03300)."""

    kind: Literal["grpo"] = "grpo"
    requires_of_run: ClassVar[Requirements] = (COMPARES_A_GROUP,)


class DrGrpo(Part):
    """A = R - mean R: GRPO without the division by the std (arXiv:2503.20783)."""

    kind: Literal["dr-grpo"] = "dr-grpo"
    requires_of_run: ClassVar[Requirements] = (COMPARES_A_GROUP,)


class Rloo(Part):
    """A = R - mean of the *other* rewards of the group (arXiv:2402.14740)."""

    kind: Literal["rloo"] = "rloo"
    requires_of_run: ClassVar[Requirements] = (COMPARES_A_GROUP,)


class ReinforcePlusPlus(Part):
    """A = (R - mean R) / std R over the whole batch of a step (REINFORCE++, arXiv:2501.03262)."""

    kind: Literal["reinforce-pp"] = "reinforce-pp"
    requires_of_run: ClassVar[Requirements] = (replace(COMPARES_A_GROUP, when=lambda credit: credit.group_baseline),)
    group_baseline: bool = False
    """Subtract the mean of the group first, the paper's second variant."""


class Gae(Part):
    """Generalised advantage estimation from a critic (PPO, arXiv:1707.06347; GAE, arXiv:1506.02438, eq. 16).

    The critic is a second model of the policy's shape, which starts from the policy's weights.
    """

    kind: Literal["gae"] = "gae"
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per sampled token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """lambda: 0 trusts the critic alone, 1 the observed return alone."""
    whiten: bool = True
    """Bring the advantages of a step to mean 0 and std 1, as PPO's reference code does."""
    critic_learning_rate: float = Field(default=1e-3, gt=0, le=1)
    """Of the critic's own optimiser, constant."""
    value_clip: float | None = Field(default=0.5, gt=0, le=OUT_OF_REACH)
    """The critic's value may move this far per step before its loss stops rewarding it; absent: plain regression."""


class Gigpo(Part):
    """A = A_E + w A_S: a group's trajectories, and its steps that acted on the same observation (arXiv:2505.10978)."""

    kind: Literal["gigpo"] = "gigpo"
    requires_of_run: ClassVar[Requirements] = (
        COMPARES_A_GROUP,
        needs_observations("gigpo", field="recipe.credit.kind"),
    )
    step_weight: float = Field(default=1.0, ge=0, le=LARGEST_NUMBER)
    """w (eq. 8); 0 is the episode's credit alone."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount of a step's return (eq. 6)."""
    scale_by_std: bool = True
    """Divide both parts by their group's std."""
    episode_mean: Literal["trajectories", "steps"] = "trajectories"
    """``steps`` counts a trajectory once per step, as the public code does, so that long ones weigh more."""


class ChunkReturn(Part):
    """G_k = gamma^(K - k) R for all tokens of chunk k of K, a chunk being one turn (IPA; ALE, eq. 5)."""

    kind: Literal["chunk-return"] = "chunk-return"
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount per interaction with the environment, never per token.  1 is trajectory-level REINFORCE."""


AttributionScale = Literal["paper", "code"]
"""Of what the std of a judge's verdicts is: trajectory averages (5.2), or steps (AgentEvolver's public code)."""


class Attribution(Part):
    """Suffix sums of a judge's verdict on each turn and of the outcome (AgentEvolver, eq. 18 to 21)."""

    kind: Literal["attribution"] = "attribution"
    requires_of_run: ClassVar[Requirements] = (COMPARES_A_GROUP,)
    alpha: float = Field(default=0.1, ge=0, le=1)
    """Weight of the verdicts; 0.1 to 0.2 is best, 0.3 overfits to the judge (7.5.3).  0 is the outcome alone."""
    decay_steps: int | None = Field(default=None, ge=1, le=LONGEST_SCHEDULE)
    """Steps over which alpha falls to 0 on half a cosine; absent: constant."""
    scale: AttributionScale = "code"
    """What verdicts are divided by.  ``code``: their std over steps, trajectories weighing the same, as the public
    code does.  ``paper``: the std of trajectory averages (5.2), which is smaller by about the root of the number of
    turns, so that long trajectories get large advantages."""
    judge: Annotated[Judge, Field(discriminator="kind")] = RuleJudge()
    """Who says GOOD or BAD."""


Credit = Grpo | DrGrpo | Rloo | ReinforcePlusPlus | Gae | Gigpo | ChunkReturn | Attribution


def compares_a_group(credit: Credit) -> bool:
    """Whether the advantage is exactly 0 in a group of one."""
    if isinstance(credit, ReinforcePlusPlus):
        return credit.group_baseline
    return not isinstance(credit, Gae | ChunkReturn)


def whitens_a_step(credit: Credit) -> bool:
    """Whether an advantage is measured against all rollouts of a step, so that a group alone has no true one."""
    return isinstance(credit, ReinforcePlusPlus) or (isinstance(credit, Gae) and credit.whiten)
