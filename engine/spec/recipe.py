"""A recipe: the algorithm as data.

Each part is a small tagged choice; the loop reads them and the trainer never learns their names.
A preset is a TOML file in ``engine/spec/presets``; ``{"preset": "grpo", ...}`` starts from it and
overrides what else is given.
"""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from engine.spec.absence import absent_where_false
from engine.spec.context import Context
from engine.spec.credit import Credit, Grpo
from engine.spec.exploration import Experience, ExpertStarts, Purification
from engine.spec.impossible import impossible
from engine.spec.objective import Clipped, Kl, Mismatch, Objective, Preference
from engine.spec.presets import preset
from engine.spec.requirement import refusals_in
from engine.spec.selection import Selection
from engine.spec.self_imitation import SelfImitation
from engine.spec.strict import LARGEST_NUMBER, LONGEST_SCHEDULE, OUT_OF_REACH, Strict
from engine.spec.supervised import MOST_STAGES, Stage, check_revisiting


class ComponentSchedule(Strict):
    """The weight of a component of the environment's: constant up to one step, constant from a later one on, and on a
    straight line between them."""

    component: str = Field(min_length=1, max_length=100)
    """Its name, as trajectories show it, e.g. ``format``."""
    first_weight: float = Field(default=1.0, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)
    """What is paid is multiplied by it up to ``first_step``."""
    last_weight: float = Field(default=0.0, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)
    """From ``last_step`` on."""
    first_step: int = Field(default=0, ge=0, le=LONGEST_SCHEDULE)
    """The last step with the first weight."""
    last_step: int = Field(ge=0, le=LONGEST_SCHEDULE)
    """The first step with the last weight."""

    @model_validator(mode="after")
    def _steps_are_in_order(self) -> Self:
        if self.last_step < self.first_step:
            remedy = f"use at least {self.first_step}"
            raise impossible("last_step", self.last_step, "it lies before first_step", remedy)
        return self


class Reward(Strict):
    """What an episode earns.  The components are kept apart on the trajectory."""

    correct: float = Field(default=1.0, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)
    """The right answer earns this."""
    wrong: float = Field(default=0.0, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)
    """A wrong answer earns this, and so does none."""
    tool_error: float = Field(default=0.0, ge=-LARGEST_NUMBER, le=0)
    """Added for each tool call that failed."""
    tool_calls: float = Field(default=0.0, ge=0, le=LARGEST_NUMBER)
    """Weight of min(1, 0.1 n) for n tool calls that worked (SPEAR, eq. 16)."""
    tool_calls_decay_steps: int = Field(default=0, ge=0, le=LONGEST_SCHEDULE)
    """T_decay: steps over which that weight falls to 0 on half a cosine (SPEAR, eq. 14); 0: it is constant."""
    well_formed: float = Field(default=0.0, ge=0, le=LARGEST_NUMBER)
    """Added where every turn was a tool call or an answer in the right form (SPEAR, eq. 17)."""

    schedules: list[ComponentSchedule] = Field(default=[], max_length=16)
    """How components that the environment itself pays change over the steps; the others stay as they are."""

    @model_validator(mode="after")
    def _a_component_has_one_schedule(self) -> Self:
        names = [schedule.component for schedule in self.schedules]
        for number, name in enumerate(names):
            if name in names[:number]:
                problem = "this component has a schedule already"
                raise impossible(f"schedules.{number}.component", name, problem, "remove one of the two")
        return self

    @model_validator(mode="after")
    def _success_is_paid_best(self) -> Self:
        if self.wrong > self.correct:
            raise impossible(
                "wrong",
                self.wrong,
                f"failure would be paid more than success, which earns {self.correct:g}",
                f"use at most {self.correct:g}",
            )
        return self


class Optimizer(Strict):
    """AdamW."""

    learning_rate: float = Field(default=3e-4, gt=0, le=1)
    """The learning rate of RL; constant after the warm-up."""
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
    stages: tuple[Stage, ...] = Field(default=(Stage(),), max_length=MOST_STAGES)
    """Supervised stages before RL, in their order; without any, RL begins with the model's own weights."""
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
    context: Context | None = None
    """What of an episode stands in the policy's context; absent: all of it."""
    kl: Kl | None = None
    """A penalty for leaving the policy that RL began with; absent: none."""
    preference: Preference | None = None
    """Corrected tool calls preferred to the failed ones they replaced, beside the objective; absent: none are."""
    mismatch: Mismatch = Mismatch()
    """Correction of the gap between sampling and training; off by default."""
    optimizer: Optimizer = Optimizer()
    """How the policy's weights move in RL."""

    @property
    def reinforces(self) -> bool:
        """Return whether there are RL steps at all."""
        return self.objective.kind not in ("none", "evaluation")

    @property
    def trains(self) -> bool:
        """Return whether any weight moves; otherwise the run is one evaluation."""
        return self.objective.kind != "evaluation"

    @property
    def supervised_steps(self) -> int | None:
        """Steps of all supervised stages together; None where that depends on how much data a file holds."""
        return None if any(stage.epochs for stage in self.stages) else sum(stage.steps for stage in self.stages)

    @model_validator(mode="after")
    def _parts_make_sense_together(self) -> Self:
        for refusal in refusals_in(self):
            raise refusal
        check_revisiting(self.stages)
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
