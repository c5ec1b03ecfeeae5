"""A recipe: the algorithm as data.

Each part is a small tagged choice; the loop reads them and the trainer never learns their names.
A preset is a TOML file in ``engine/spec/presets``; ``{"preset": "grpo", ...}`` starts from it and
overrides what else is given.
"""

import tomllib
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from engine.spec.strict import Strict


class Grpo(Strict):
    """A = (R - mean R) / std R inside the group of one prompt (arXiv:2402.03300)."""

    kind: Literal["grpo"] = "grpo"


class DrGrpo(Strict):
    """A = R - mean R: GRPO without the division by the std (arXiv:2503.20783)."""

    kind: Literal["dr-grpo"] = "dr-grpo"


class Rloo(Strict):
    """A = R - mean of the *other* rewards of the group (arXiv:2402.14740)."""

    kind: Literal["rloo"] = "rloo"


Credit = Annotated[Grpo | DrGrpo | Rloo, Field(discriminator="kind")]

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


class Clipped(Strict):
    """The clipped surrogate, with its two clips apart (DAPO, arXiv:2503.14476) and an optional dual clip."""

    kind: Literal["clipped"] = "clipped"
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.28, ge=0)
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound c on the loss of tokens with a negative advantage (arXiv:1912.09729); off when absent."""
    aggregation: Aggregation = "token-mean"
    """How token losses become one number."""


Objective = Clipped


class Reward(Strict):
    """What an episode earns.  The components are kept apart on the trajectory."""

    correct: float = 1.0
    """For the right answer."""
    wrong: float = 0.0
    """For a wrong answer, and for none."""
    tool_error: float = Field(default=0.0, le=0)
    """Added for each tool call that failed."""


class ColdStart(Strict):
    """Supervised steps on scripted demonstrations before RL.

    ``wrong_fraction`` of them guess the answer without the tool.  A majority makes guessing the
    policy's most likely behaviour, which RL then has to change.
    """

    demonstrations: int = Field(default=12288, ge=1)
    wrong_fraction: float = Field(default=0.6, ge=0, le=1)
    """The share of demonstrations that answer without using the tool."""
    tool_error_fraction: float = Field(default=0.2, ge=0, le=1)
    """The share of the other demonstrations whose first tool call is broken and then repaired."""
    steps: int = Field(default=600, ge=0)
    """0 leaves the cold start out."""
    batch_size: int = Field(default=64, ge=1)
    learning_rate: float = Field(default=2e-3, gt=0)


class Optimizer(Strict):
    """AdamW."""

    learning_rate: float = Field(default=3e-4, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest global gradient norm."""
    warmup_steps: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises linearly from 0."""


class Recipe(Strict):
    preset: str | None = None
    """The preset this recipe started from, kept for the reader."""
    cold_start: ColdStart | None = ColdStart()
    """Supervised start; absent, or of 0 steps, means that RL begins with the model's own weights."""
    credit: Credit = Grpo()
    """How rewards become advantages."""
    objective: Objective = Clipped()
    """The loss of the policy."""
    reward: Reward = Reward()
    optimizer: Optimizer = Optimizer()

    @property
    def cold_start_steps(self) -> int:
        """Supervised steps before RL; 0 without a cold start."""
        return 0 if self.cold_start is None else self.cold_start.steps

    @model_validator(mode="before")
    @classmethod
    def _start_from_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("preset"), str):
            return given
        return _merged(load_preset(given["preset"]), given)


def preset_names() -> list[str]:
    files = resources.files("engine.spec").joinpath("presets").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_preset(name: str) -> dict[str, Any]:
    """The preset's table as written in its file."""
    if name not in preset_names():
        raise PydanticCustomError(
            "unknown_preset",
            "there is no preset '{name}'",
            {"field": "preset", "value": name, "name": name, "remedy": f"use one of: {', '.join(preset_names())}"},
        )
    return tomllib.loads(resources.files("engine.spec").joinpath("presets", f"{name}.toml").read_text())


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
