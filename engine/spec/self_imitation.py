"""Self-imitation: learning again from the policy's own good trajectories."""

from typing import ClassVar, Literal

from pydantic import Field

from engine.spec.objective import CovarianceClip
from engine.spec.requirement import Part, Requirement, Requirements, none_of, one_of
from engine.spec.strict import LONGEST_SCHEDULE, MOST_THINGS


class SelfImitation(Part):
    """SPEAR's replay of trajectories with A > 0, recalibrated against what the policy earns now (section 4.2)."""

    requires: ClassVar[Requirements] = (
        Requirement(
            "objective.kind",
            one_of("clipped", "gspo", "cispo"),
            "self-imitation replays with the clipped surrogate, beside which {value} is not defined",
            'use objective.kind = "clipped", or remove self_imitation',
        ),
        Requirement(
            "credit.kind",
            none_of("gae"),
            "self-imitation compares rewards with those of groups, and gae has no groups",
            "use another credit, or remove self_imitation",
        ),
    )
    requires_of_run: ClassVar[Requirements] = (
        Requirement(
            "schedule.async_ratio",
            lambda ratio, part: ratio <= part.max_age_steps,
            "with schedule.async_ratio = {value} a rollout may be older than recipe.self_imitation.max_age_steps "
            "before it is first trained on, so that it would never be replayed",
            "use a max_age_steps of at least {value}, or a smaller async_ratio",
            field="recipe.self_imitation.max_age_steps",
        ),
    )
    replay_buffer: int = Field(default=2048, ge=0, le=MOST_THINGS)
    """N_D: trajectories that are collected and then replayed at once; 0 replays none."""
    baseline_buffer: int = Field(default=10240, ge=0, le=MOST_THINGS)
    """N_DR: latest group means whose median is the baseline; 0 keeps each trajectory's own advantage."""
    max_age_steps: int = Field(default=10, ge=1, le=LONGEST_SCHEDULE)
    """Older entries leave the replay buffer."""
    warmup_steps: int = Field(default=200, ge=0, le=LONGEST_SCHEDULE)
    """T_warmup: steps over which the weight of the replay rises to 1 (eq. 13); 0: full weight at once."""
    mode: Literal["sum", "after"] = "sum"
    """``sum``: added to the loss of the on-policy batch (eq. 5).  ``after``: updates of its own after it."""
    covariance: CovarianceClip | None = CovarianceClip()
    """Clipping of tokens that collapse entropy, in the replayed part (eq. 18)."""
