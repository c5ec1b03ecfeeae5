"""Objectives: what a policy update minimises, and what keeps it near where it was."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from engine.spec.credit import Grpo
from engine.spec.impossible import impossible
from engine.spec.requirement import Part, Requirement, Requirements, absent, none_of, one_of, positive, present
from engine.spec.selection import Selection
from engine.spec.strict import LARGEST_NUMBER, OUT_OF_REACH, Strict

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
"""How token losses become one number; the last divides by the longest possible response (Dr. GRPO)."""

RatioSize = Literal["token", "chunk", "sequence"]
"""What an importance ratio is taken over: a token, or the geometric mean over a turn or over a trajectory."""


def _log_probs_at_1(problem: str) -> Requirement:
    return Requirement("schedule.logprobs_at", one_of("one"), problem, 'use "one"', field="schedule.logprobs_at")


RatioTo = Literal["auto", "old", "rollout"]
_ONE_CORRECTION = Requirement(
    "mismatch.weight",
    one_of(None),
    "the ratios to the policy that sampled hold what {value} weights correct, and it would be corrected twice",
    'remove mismatch.weight, or use objective.ratio_to = "old"',
    field="mismatch.weight",
    when=lambda part: part.ratio_to == "rollout",
)


class CovarianceClip(Strict):
    """Drop a few tokens whose log-prob and advantage go together most: they collapse entropy (SPEAR, eq. 18 to 21)."""

    kind: Literal["clip"] = "clip"
    share: float = Field(default=0.02, ge=0, lt=1)
    """lambda: the share of all tokens that is dropped; 0 drops none."""
    low: float | None = None
    """omega_lb; absent: measured on the first step whose covariances differ, with omega_ub (A.12.1)."""
    high: float | None = None
    """omega_ub."""
    low_share: float = Field(default=0.02, gt=0, le=1)
    """Where it is measured: omega_lb is the mean of this share of the highest covariances."""
    high_share: float = Field(default=0.0002, gt=0, le=1)
    """omega_ub is measured in the same way."""

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise impossible("low", self.low, "one bound without the other", "give both low and high, or neither")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise impossible("low", self.low, f"no covariance lies between {self.low} and {self.high}", "low < high")
        if self.low is None and self.low_share <= self.high_share:
            raise impossible(
                "low_share",
                self.low_share,
                f"the mean of so few is no lower bound beside that of high_share = {self.high_share}",
                "low_share > high_share",
            )
        return self


class CovarianceKl(Strict):
    """Hold back the tokens with the highest covariance by a KL penalty (KL-Cov, arXiv:2505.22617)."""

    kind: Literal["kl"] = "kl"
    share: float = Field(default=0.0002, ge=0, lt=1)
    """The share of all tokens that is penalised."""
    beta: float = Field(default=1.0, ge=0, le=LARGEST_NUMBER)
    """Weight of the penalty."""


Covariance = Annotated[CovarianceClip | CovarianceKl, Field(discriminator="kind")]


class Clipped(Part):
    """The clipped surrogate, with its two clips apart (DAPO, arXiv:2503.14476) and an optional dual clip."""

    kind: Literal["clipped"] = "clipped"
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.28, ge=0, le=OUT_OF_REACH)
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1, le=OUT_OF_REACH)
    """Bound c on the loss of tokens with a negative advantage (arXiv:1912.09729); off when absent."""
    covariance: Covariance | None = None
    """What is done about tokens that collapse entropy; absent: nothing."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number."""

    @property
    def clips(self) -> bool:
        """KL-Cov has a penalty instead."""
        return not isinstance(self.covariance, CovarianceKl) or self.covariance.share == 0


class Gspo(Part):
    """The clipped surrogate of the whole sequence's ratio (arXiv:2507.18071)."""

    kind: Literal["gspo"] = "gspo"
    clip_low: float = Field(default=3e-4, ge=0, lt=1)
    """Small, because the ratio is a geometric mean (5.1)."""
    clip_high: float = Field(default=4e-4, ge=0, le=OUT_OF_REACH)
    """It is compared with the covariance in the same way."""
    aggregation: Aggregation = "seq-mean-token-mean"
    """How token losses become one number."""


class Cispo(Part):
    """-[clip(ratio)] A log pi: no token's gradient is ever cut off (arXiv:2506.13585, eq. 4, 5)."""

    kind: Literal["cispo"] = "cispo"
    clip_low: float | None = Field(default=None, ge=0, le=1)
    """The weight is at least 1 - clip_low; absent: no lower bound."""
    clip_high: float = Field(default=0.28, ge=0, le=OUT_OF_REACH)
    """The weight is at most 1 + clip_high."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number."""


class Tis(Part):
    """-[ratio]_0^bound A log pi: truncated importance sampling (ALE, 3.2.4.1)."""

    kind: Literal["tis"] = "tis"
    requires: ClassVar[Requirements] = (_ONE_CORRECTION,)
    ratio: RatioSize = "sequence"
    """What it is taken over; larger than a token: the geometric mean."""
    ratio_to: RatioTo = "auto"
    """The policy that it compares with.  ``old``: the trainer's from before the step, so that ratios are 1 in a step's
    first update; ``rollout``: the one that sampled, however old.  ``auto``: ``rollout`` above ``schedule.async_ratio``
    0, where ``mismatch.weight`` does not correct the same; else ``old``."""
    bound: float = Field(default=1.0, gt=0, le=OUT_OF_REACH)
    """The largest weight."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number."""


class Topr(Part):
    """Positives like supervised learning, all others as in TIS (ALE, eq. 3; arXiv:2503.14286)."""

    kind: Literal["topr"] = "topr"
    requires: ClassVar[Requirements] = (_ONE_CORRECTION,)
    ratio: RatioSize = "sequence"
    """What it is taken over; larger than a token: the geometric mean."""
    ratio_to: RatioTo = "auto"
    """The policy that it compares with.  ``old``: the trainer's from before the step, so that ratios are 1 in a step's
    first update; ``rollout``: the one that sampled, however old.  ``auto``: ``rollout`` above ``schedule.async_ratio``
    0, where ``mismatch.weight`` does not correct the same; else ``old``."""
    bound: float = Field(default=1.0, gt=0, le=OUT_OF_REACH)
    """The bound of the weight of what is not positive."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number."""


class Ipa(Part):
    """Interaction-level policy alignment: TOPR on chunks, and imitation of prefilled expert chunks (ALE, eq. 7, 8).

    Its constants have no source but this: the paper names them and gives no value.
    """

    kind: Literal["ipa"] = "ipa"
    requires: ClassVar[Requirements] = (
        _ONE_CORRECTION,
        Requirement(
            "credit.kind",
            one_of("chunk-return"),
            "the ipa objective is defined on chunk returns, and {value} gives advantages",
            'use credit.kind = "chunk-return"',
            field="credit.kind",
        ),
        Requirement(
            "reward.correct",
            positive,
            "imitation weighs an expert's turns by what its success earned, and at 0 or less it would learn nothing",
            "pay more than 0 for the right answer, or set objective.imitation_weight = 0",
            field="reward.correct",
            when=lambda ipa: ipa.imitation_weight > 0,
            given="expert_starts",
        ),
    )
    ratio_to: RatioTo = "auto"
    """The policy that the chunks' ratios compare with.  ``old``: the trainer's from before the step, so that ratios are
    1 in a step's first update; ``rollout``: the one that sampled, however old.  ``auto``: ``rollout`` above
    ``schedule.async_ratio`` 0, else ``old``."""
    mismatch_bound: float | None = Field(default=5.0, gt=1, le=OUT_OF_REACH)
    """H: chunks whose train/inference ratio is above it are masked; absent: none is."""
    imitation_weight: float = Field(default=0.1, ge=0, le=LARGEST_NUMBER)
    """lambda_IL, of the expert's replayed turns, each weighed by what the expert earned."""
    reinforcement_weight: float = Field(default=1.0, ge=0, le=LARGEST_NUMBER)
    """lambda_RL."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number."""


class Dpo(Part):
    """Prefer a corrected tool call to the failed one it replaced (CLEANER, appendix C; arXiv:2305.18290).

    An ablation: the authors report that it collapses late in training.
    """

    kind: Literal["dpo"] = "dpo"
    requires: ClassVar[Requirements] = (
        Requirement(
            "purification",
            present,
            "dpo prefers corrected tool calls to failed ones, and without purification there are none",
            "add [recipe.purification]",
            field="purification",
        ),
        Requirement(
            "purification.share",
            positive,
            "dpo prefers corrected tool calls to failed ones, and with a share of 0 there are none",
            "use a share greater than 0",
            field="purification.share",
        ),
        Requirement(
            "credit.kind",
            none_of("gae"),
            "dpo learns from pairs alone: it would never ask the critic of gae",
            'use credit.kind = "grpo"',
            field="credit.kind",
        ),
        Requirement(
            "credit.kind",
            none_of("attribution"),
            "dpo learns from pairs alone: it would never ask the judge of attribution",
            'use credit.kind = "grpo"',
            field="credit.kind",
        ),
    )
    requires_of_run: ClassVar[Requirements] = (
        _log_probs_at_1("dpo compares two answers whole, one of which nobody may have sampled at that temperature"),
    )
    beta: float = Field(default=0.1, gt=0, le=LARGEST_NUMBER)
    """How strongly the policy is held to its reference.  The paper gives no value."""


class NoObjective(Part):
    """No reinforcement learning: the run ends with its supervised stages."""

    kind: Literal["none"] = "none"
    requires: ClassVar[Requirements] = (
        Requirement(
            "stages",
            none_of(()),
            "neither supervised stages nor RL: there is nothing to train",
            "give a stage, or an objective other than none",
            field="stages",
        ),
        Requirement(
            "expert_starts",
            absent,
            "none has no RL, and so no rollouts that could begin anywhere",
            "remove expert_starts",
            field="expert_starts",
        ),
        Requirement(
            "selection",
            one_of(Selection()),
            "none has no RL, and so no rollouts to select from",
            "remove selection",
            field="selection",
        ),
    )
    requires_of_run: ClassVar[Requirements] = (
        _log_probs_at_1("none has no RL, and its supervised stages learn at temperature 1"),
    )


class EvaluationOnly(Part):
    """No training at all: the model is evaluated as it is, and the run ends.  It writes no checkpoint."""

    kind: Literal["evaluation"] = "evaluation"
    requires: ClassVar[Requirements] = (
        Requirement(
            "stages",
            one_of(()),
            "an evaluation trains nothing, and has no supervised stages",
            'set stages = [], or use objective.kind = "none" to train without RL',
            field="stages",
        ),
        *(
            Requirement(
                field, holds, f"an evaluation trains nothing, and {field} says how to train", f"remove {field}",
                field=field,
            )
            for field, holds in (
                ("credit", one_of(Grpo())),
                ("selection", one_of(Selection())),
                ("self_imitation", absent),
                ("experience", absent),
                ("expert_starts", absent),
            )
        ),
        Requirement(
            "purification.in_evaluation",
            one_of(True),
            "an evaluation trains nothing, and purification is of training alone",
            "set purification.in_evaluation, or remove purification",
            field="purification.in_evaluation",
        ),
    )  # fmt: skip
    requires_of_run: ClassVar[Requirements] = (
        _log_probs_at_1("an evaluation trains nothing, and takes its log-probs at temperature 1"),
    )


Objective = Clipped | Gspo | Cispo | Tis | Topr | Ipa | Dpo | NoObjective | EvaluationOnly


class Kl(Part):
    """A penalty for leaving the policy that RL began with."""

    requires: ClassVar[Requirements] = (
        Requirement(
            "objective.kind",
            none_of("dpo", "none", "evaluation"),
            "{value} has no KL term: dpo carries its reference inside, none and evaluation have no RL",
            "remove kl",
        ),
    )
    beta: float = Field(default=0.001, ge=0, le=LARGEST_NUMBER)
    """Its weight; 0 is its absence."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Schulman, "Approximating KL divergence", 2020."""


class Preference(Part):
    """Prefer a corrected tool call to the failed one it replaced, beside the objective (CLEANER, appendix C).

    The loss of dpo on the step's repairs, added to the objective's in the same updates.
    """

    requires: ClassVar[Requirements] = (
        Requirement(
            "purification",
            present,
            "preference compares corrected tool calls with failed ones, and without purification there are none",
            "add [recipe.purification], or remove preference",
        ),
        Requirement(
            "purification.share",
            positive,
            "preference compares corrected tool calls with failed ones, and with a share of 0 there are none",
            "use a share greater than 0, or remove preference",
            field="purification.share",
        ),
        Requirement(
            "objective.kind",
            none_of("dpo", "none", "evaluation"),
            "{value} has no loss that preference could be added to: dpo is the same loss alone, the others have no RL",
            "remove preference",
        ),
    )
    requires_of_run: ClassVar[Requirements] = (
        _log_probs_at_1(
            "preference compares two answers whole, one of which nobody may have sampled at that temperature"
        ),
    )
    beta: float = Field(default=0.1, gt=0, le=LARGEST_NUMBER)
    """How strongly the policy is held to its reference.  The paper gives no value."""
    weight: float = Field(default=1.0, ge=0, le=LARGEST_NUMBER)
    """The weight of the loss on pairs beside the objective's; 0 is its absence.  The paper gives no value."""


class Mismatch(Part):
    """Correction of the gap between the engine that sampled a token and the one that trains on it (ALE, eq. 4)."""

    requires: ClassVar[Requirements] = (
        Requirement(
            "objective.kind",
            none_of("ipa", "dpo", "none", "evaluation"),
            "{value} does not use it: ipa masks chunks by its own mismatch_bound, the others have no ratio",
            "remove mismatch",
            when=lambda mismatch: mismatch.mask is not None or mismatch.weight is not None,
        ),
    )
    mask: RatioSize | None = None
    """Leave out tokens, turns or trajectories whose ratio is above ``mask_bound``; absent: none."""
    mask_bound: float = Field(default=5.0, gt=1, le=OUT_OF_REACH)
    """H.  ALE gives no value."""
    weight: RatioSize | None = None
    """Weigh losses by the ratio, cut at ``weight_bound``; absent: by 1."""
    weight_bound: float = Field(default=2.0, gt=0, le=OUT_OF_REACH)
    """The largest weight: truncated importance sampling."""
