"""A recipe: the algorithm as data.

Each part is a small tagged choice; the loop reads them and the trainer never learns their names.
A preset is a TOML file in ``engine/spec/presets``; ``{"preset": "grpo", ...}`` starts from it and
overrides what else is given.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from engine.spec.absence import absent_where_false
from engine.spec.credit import Credit, Grpo
from engine.spec.exploration import Experience, ExpertStarts, Purification
from engine.spec.impossible import impossible
from engine.spec.objective import Clipped, Ipa, Kl, Mismatch, Objective
from engine.spec.presets import preset
from engine.spec.selection import Selection
from engine.spec.self_imitation import SelfImitation
from engine.spec.strict import LARGEST_NUMBER, LONGEST_SCHEDULE, OUT_OF_REACH, Strict
from engine.spec.supervised import ColdStart


class Reward(Strict):
    """What an episode earns.  The components are kept apart on the trajectory."""

    correct: float = Field(default=1.0, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)
    """For the right answer."""
    wrong: float = Field(default=0.0, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)
    """For a wrong answer, and for none."""
    tool_error: float = Field(default=0.0, ge=-LARGEST_NUMBER, le=0)
    """Added for each tool call that failed."""
    tool_calls: float = Field(default=0.0, ge=0, le=LARGEST_NUMBER)
    """Weight of min(1, 0.1 n) for n tool calls that worked (SPEAR, eq. 16)."""
    tool_calls_decay_steps: int = Field(default=0, ge=0, le=LONGEST_SCHEDULE)
    """T_decay: steps over which that weight falls to 0 on half a cosine (SPEAR, eq. 14); 0: it is constant."""
    well_formed: float = Field(default=0.0, ge=0, le=LARGEST_NUMBER)
    """Added where every turn was a tool call or an answer in the right form (SPEAR, eq. 17)."""


class Optimizer(Strict):
    """AdamW."""

    learning_rate: float = Field(default=3e-4, gt=0, le=1)
    """Of RL; constant after the warm-up."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """AdamW's, in RL alone."""
    grad_clip: float = Field(default=1.0, gt=0, le=OUT_OF_REACH)
    """Largest global gradient norm."""
    warmup_steps: int = Field(default=0, ge=0, le=LONGEST_SCHEDULE)
    """Updates over which the learning rate rises linearly from 0."""


class Recipe(Strict):
    """How a policy is trained.  What may be absent can also be ``false``, since TOML has no word for null."""

    preset: str | None = None
    """The preset this recipe started from, kept for the reader."""
    cold_start: ColdStart | None = ColdStart()
    """Supervised start; absent, or of 0 steps, means that RL begins with the model's own weights."""
    credit: Annotated[Credit, Field(discriminator="kind")] = Grpo()
    """How rewards become advantages."""
    objective: Annotated[Objective, Field(discriminator="kind")] = Clipped()
    """The loss of the policy."""
    reward: Reward = Reward()
    """What an episode earns."""
    selection: Selection = Selection()
    """Which rollouts are worth an update."""
    purification: Purification | None = None
    """Rolling failed tool calls back; absent: they stay."""
    self_imitation: SelfImitation | None = None
    """Replay of the policy's own successes; absent: none."""
    experience: Experience | None = None
    """Experience shown to some rollouts; absent: none."""
    expert_starts: ExpertStarts | None = None
    """Rollouts that begin inside an expert's trajectory; absent: all begin at the start."""
    kl: Kl | None = None
    """A penalty for leaving the policy that RL began with; absent: none."""
    mismatch: Mismatch = Mismatch()
    """Correction of the gap between sampling and training; off by default."""
    optimizer: Optimizer = Optimizer()
    """How the policy's weights move in RL."""

    @property
    def reinforces(self) -> bool:
        """Whether there are RL steps at all."""
        return self.objective.kind != "none"

    @property
    def cold_start_steps(self) -> int:
        """Supervised steps before RL; 0 without a cold start."""
        return 0 if self.cold_start is None else self.cold_start.steps

    @model_validator(mode="after")
    def _parts_make_sense_together(self) -> Self:
        for field, value, senseless, problem, remedy in _senseless(self):
            if senseless:
                raise impossible(field, value, problem, remedy)
        return self

    @model_validator(mode="before")
    @classmethod
    def _start_from_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if isinstance(given.get("preset"), str):
            given = _merged(preset(given["preset"]).recipe, given)
        objective = given.get("objective")
        if isinstance(objective, dict) and "kind" not in objective:
            given = {**given, "objective": {"kind": Clipped().kind, **objective}}
        return absent_where_false(given, cls)


def _senseless(recipe: Recipe) -> Iterator[tuple[str, Any, bool, str, str]]:
    """(field, its value, whether it makes no sense, why, remedy) of each combination that is known to make none."""
    objective, credit = recipe.objective.kind, recipe.credit.kind
    yield (
        "cold_start.steps",
        recipe.cold_start_steps,
        objective == "none" and recipe.cold_start_steps == 0,
        "neither supervised nor RL steps: there is nothing to train",
        "give cold_start.steps, or an objective other than none",
    )
    yield (
        "credit.kind",
        credit,
        objective == "ipa" and credit != "chunk-return",
        f"the ipa objective is defined on chunk returns, and {credit} gives advantages",
        'use credit.kind = "chunk-return"',
    )
    yield (
        "purification",
        None,
        objective == "dpo" and recipe.purification is None,
        "dpo prefers corrected tool calls to failed ones, and without purification there are none",
        "add [recipe.purification]",
    )
    yield (
        "purification.share",
        0.0,
        objective == "dpo" and recipe.purification is not None and recipe.purification.share == 0,
        "dpo prefers corrected tool calls to failed ones, and with a share of 0 there are none",
        "use a share greater than 0",
    )
    yield (
        "reward.wrong",
        recipe.reward.wrong,
        recipe.reward.wrong > recipe.reward.correct,
        f"failure would be paid more than success, which earns {recipe.reward.correct:g}",
        f"use at most {recipe.reward.correct:g}",
    )
    yield (
        "credit.kind",
        credit,
        objective == "dpo" and credit in ("gae", "attribution"),
        f"dpo learns from pairs alone: it would never ask the {'critic' if credit == 'gae' else 'judge'} of {credit}",
        'use credit.kind = "grpo"',
    )
    yield (
        "expert_starts",
        "set",
        objective == "none" and recipe.expert_starts is not None,
        "none has no RL, and so no rollouts that could begin anywhere",
        "remove expert_starts",
    )
    yield (
        "reward.correct",
        recipe.reward.correct,
        isinstance(recipe.objective, Ipa)
        and recipe.objective.imitation_weight > 0
        and recipe.expert_starts is not None
        and recipe.reward.correct <= 0,
        "imitation weighs an expert's turns by what its success earned, and at 0 or less it would learn nothing",
        "pay more than 0 for the right answer, or set objective.imitation_weight = 0",
    )
    yield (
        "selection",
        "set",
        objective == "none" and recipe.selection != Selection(),
        "none has no RL, and so no rollouts to select from",
        "remove selection",
    )
    yield (
        "self_imitation",
        "set",
        recipe.self_imitation is not None and objective not in ("clipped", "gspo", "cispo"),
        f"self-imitation replays with the clipped surrogate, beside which {objective} is not defined",
        'use objective.kind = "clipped", or remove self_imitation',
    )
    yield (
        "self_imitation",
        "set",
        recipe.self_imitation is not None and credit == "gae",
        "self-imitation compares rewards with those of groups, and gae has no groups",
        "use another credit, or remove self_imitation",
    )
    yield (
        "experience",
        "set",
        recipe.experience is not None and objective != "clipped",
        f"selective boosting widens the upper clip, and {objective} has none of that form",
        'use objective.kind = "clipped", or remove experience',
    )
    yield from _senseless_beside_clips(recipe)
    yield (
        "experience",
        "set",
        recipe.experience is not None and recipe.expert_starts is not None,
        "a rollout cannot both be shown lessons and begin inside an expert's trajectory, whose tokens were sampled "
        "without them",
        "remove experience or expert_starts",
    )
    yield (
        "kl",
        "set",
        recipe.kl is not None and objective in ("dpo", "none"),
        f"{objective} has no KL term: dpo carries its reference inside, none has no RL",
        "remove kl",
    )
    yield (
        "mismatch",
        "set",
        objective in ("ipa", "dpo", "none")
        and (recipe.mismatch.mask is not None or recipe.mismatch.weight is not None),
        f"{objective} does not use it: ipa masks chunks by its own mismatch_bound, dpo and none have no ratio",
        "remove mismatch",
    )
    yield (
        "selection.dynamic_sampling",
        "set",
        recipe.selection.dynamic_sampling is not None and credit in ("gae", "reinforce-pp", "chunk-return"),
        f"dynamic sampling keeps groups of mixed success, and {credit} also learns from all others",
        "remove dynamic_sampling, or use a credit that compares a group",
    )


def _senseless_beside_clips(recipe: Recipe) -> Iterator[tuple[str, Any, bool, str, str]]:
    """What is said about clips that the objective does not have, or has wider already."""
    objective, experience = recipe.objective, recipe.experience
    if not isinstance(objective, Clipped):
        return
    if experience is None or experience.training == "keep":
        return
    yield (
        "experience",
        "set",
        not objective.clips,
        "selective boosting widens the upper clip, and a covariance penalty (KL-Cov) takes the place of all clips",
        'use experience.training = "keep", or another objective.covariance',
    )
    yield (
        "experience.boosted_clip_high",
        experience.boosted_clip_high,
        experience.boosted_clip_high < objective.clip_high,
        f"what was stripped would be clipped more narrowly than the rest, at {objective.clip_high:g}",
        f"use at least {objective.clip_high:g}",
    )


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``, table by table.  A table that changes its ``kind`` replaces the other whole."""
    merged = dict(below)
    for key, value in above.items():
        old = below.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged
