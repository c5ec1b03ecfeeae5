"""Credit: how the rewards of rollouts become advantages.  The registry of advantage estimators is ``Credit``."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from engine.spec.estimator import COMPARES_A_GROUP, CriticEstimator, Estimator
from engine.spec.judge import Judge, RuleJudge
from engine.spec.requirement import Requirement, Requirements, needs_observations
from engine.spec.strict import LARGEST_NUMBER, LONGEST_SCHEDULE


class Grpo(Estimator):
    """A = (R - mean R) / std R inside the group of one prompt (arXiv:2402.03300)."""

    kind: Literal["grpo"] = "grpo"
    computed_by: ClassVar[str] = "engine.training.estimators.outcome:advantages"
    requires_of_run: ClassVar[Requirements] = (COMPARES_A_GROUP,)


class DrGrpo(Estimator):
    """A = R - mean R: GRPO without the division by the std (arXiv:2503.20783)."""

    kind: Literal["dr-grpo"] = "dr-grpo"
    computed_by: ClassVar[str] = "engine.training.estimators.outcome:advantages"
    requires_of_run: ClassVar[Requirements] = (COMPARES_A_GROUP,)


class Rloo(Estimator):
    """A = R - mean of the *other* rewards of the group (arXiv:2402.14740)."""

    kind: Literal["rloo"] = "rloo"
    computed_by: ClassVar[str] = "engine.training.estimators.outcome:advantages"
    requires_of_run: ClassVar[Requirements] = (COMPARES_A_GROUP,)


class ReinforcePlusPlus(Estimator):
    """A = (R - mean R) / std R over the whole batch of a step (REINFORCE++, arXiv:2501.03262)."""

    kind: Literal["reinforce-pp"] = "reinforce-pp"
    computed_by: ClassVar[str] = "engine.training.estimators.outcome:advantages"
    requires_of_run: ClassVar[Requirements] = (replace(COMPARES_A_GROUP, when=lambda credit: credit.group_baseline),)
    group_baseline: bool = False
    """Subtract the mean of the group first, the paper's second variant."""

    def whitens_a_step(self) -> bool:
        return True


class Gae(CriticEstimator):
    """Generalised advantage estimation from a critic (PPO, arXiv:1707.06347; GAE, arXiv:1506.02438, eq. 16).

    The critic is a second model of the policy's shape, which starts from the policy's weights.
    """

    kind: Literal["gae"] = "gae"
    estimated_by: ClassVar[str] = "engine.training.estimators.gae:generalised"
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per sampled token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """lambda: 0 trusts the critic alone, 1 the observed return alone."""


class Gigpo(Estimator):
    """A = A_E + w A_S: a group's trajectories, and its steps that acted on the same observation (arXiv:2505.10978)."""

    kind: Literal["gigpo"] = "gigpo"
    computed_by: ClassVar[str] = "engine.training.estimators.gigpo:advantages"
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


class ChunkReturn(Estimator):
    """G_k = gamma^(K - k) R for all tokens of chunk k of K, a chunk being one turn (IPA; ALE, eq. 5)."""

    kind: Literal["chunk-return"] = "chunk-return"
    computed_by: ClassVar[str] = "engine.training.estimators.chunk_return:advantages"
    requires: ClassVar[Requirements] = (
        Requirement(
            "reward",
            lambda reward, credit: bool(reward.tool_error or reward.tool_calls),
            "the recipe pays for no single tool call, so that no turn has a reward of its own",
            "set reward.tool_error or reward.tool_calls, or remove credit.intrinsic",
            field="credit.intrinsic",
            when=lambda credit: credit.intrinsic,
        ),
    )
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount per interaction with the environment, never per token.  1 is trajectory-level REINFORCE."""
    intrinsic: bool = False
    """Whether what single tool calls earn (``reward.tool_error``, ``reward.tool_calls``) counts in the turn that made
    them, G_k = r_k + gamma G_{k+1}, and only the rest of the reward in the last one.  Off: all of it is R (eq. 5)."""


AttributionScale = Literal["paper", "code"]
"""The unit whose std scales a judge's verdicts: trajectory averages (5.2), or steps (AgentEvolver's public code)."""


class Attribution(Estimator):
    """Suffix sums of a judge's verdict on each turn and of the outcome (AgentEvolver, eq. 18 to 21)."""

    kind: Literal["attribution"] = "attribution"
    computed_by: ClassVar[str] = "engine.training.estimators.attribution:advantages"
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
