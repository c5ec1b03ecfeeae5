"""The table of a difficulty measurement: what it was made with, then one line for each training task.

{"kind": "difficulty", "tasks": 480, "rollouts": 8, "spec": {...}, "weights": {...}}
{"task": "train-0", "number": 0, "sha256": "...", "rollouts": 8, "successes": 3}
"""

import hashlib
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from engine.spec.impossible import impossible
from engine.spec.pinned_file import Sha256
from engine.spec.strict import MOST_TASKS, MOST_THINGS, Strict
from engine.spec.trajectory import Task


class Measurement(Strict):
    """What the successes of a table belong to."""

    kind: Literal["difficulty"] = "difficulty"
    tasks: int = Field(ge=1, le=MOST_TASKS)
    """Training tasks, from the first one on: a line for each."""
    rollouts: int = Field(ge=1, le=MOST_THINGS)
    """How often each was to be played."""
    spec: dict[str, Any]
    """The run that measured: environment, data, model, sampling, supervised start and seed."""
    weights: dict[str, Sha256]
    """By file, what the model began with; empty where its weights come from the seed."""


class TaskDifficulty(Strict):
    """How often one task was solved."""

    task: str
    number: int = Field(ge=0, le=MOST_TASKS)
    """Among the training tasks."""
    sha256: Sha256
    """The digest of the task's content, by which it is known again."""
    rollouts: int = Field(ge=0, le=MOST_THINGS)
    """Those that came back and raised no alert."""
    successes: int = Field(ge=0, le=MOST_THINGS)

    @model_validator(mode="after")
    def _succeeds_as_often_as_it_is_played_at_most(self) -> Self:
        if self.successes > self.rollouts:
            raise impossible(
                "successes", self.successes, f"only {self.rollouts} were played", f"use at most {self.rollouts}"
            )
        return self

    @property
    def rate(self) -> float | None:
        """The share of successes; None where no rollout came back."""
        return self.successes / self.rollouts if self.rollouts else None


def task_sha256(task: Task) -> str:
    """Return what a task is known again by, whatever environment, seed or version it was made with."""
    return hashlib.sha256(task.model_dump_json(exclude={"part"}).encode()).hexdigest()
