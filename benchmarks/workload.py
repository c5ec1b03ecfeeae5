"""The work that both sides do, step by step: the same spec, prompts, token format, start weights and sizes.

Two settings:

``completions``  One turn per rollout, no tool, exactly ``max_turn_tokens`` sampled tokens: stop
    tokens do not stop.  Every trajectory costs both sides the same number of tokens, so this
    compares the machinery alone, and gives continuous batching nothing to gain.
``tool-use``  Whole episodes of python-math from a policy that has been taught to call its tool:
    several turns, each ended by its own stop token, with a sandbox behind the calls.

Both sides import this module, so it must not import torch.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory

Setting = Literal["completions", "tool-use"]
SETTINGS: tuple[Setting, ...] = ("completions", "tool-use")

LEARNING_RATE = 1e-6
"""So small that the policies of both sides stay what they were, and lengths do not drift apart during a run.

The cost of an update does not depend on it."""


@dataclass(frozen=True)
class Workload:
    setting: Setting
    spec: dict[str, Any]
    """A RunSpec as JSON."""
    policy_folder: str
    """Start weights: a checkpoint of the trainer, whose ``model`` folder Hugging Face loads as it is."""
    warmup_steps: int
    timed_steps: int

    @property
    def steps(self) -> int:
        return self.warmup_steps + self.timed_steps

    def run_spec(self) -> RunSpec:
        return RunSpec.model_validate(self.spec)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Workload":
        return cls(**json.loads(path.read_text()))


def spec_for(setting: Setting, *, steps: int, threads: int) -> RunSpec:
    """Palestra's default model, group size, batch and recipe."""
    return RunSpec.model_validate(
        {
            "name": f"benchmark {setting}",
            "environment": {
                "max_turns": 1 if setting == "completions" else 5,
                "max_turn_tokens": 32,
                "sandbox": {"reuse": "reset"},  # what is compared are trainers, not the making of sandboxes
            },
            "recipe": {"stages": [], "optimizer": {"learning_rate": LEARNING_RATE}},
            "resources": {"threads": threads, "sandboxes": 64 if setting == "tool-use" else 1},
            "schedule": {"steps": steps},
        }
    )


def digit_share(pieces: Sequence[str]) -> float:
    """The reward of ``completions``: a number that differs inside every group, so that no side may skip a gradient."""
    return sum(piece.isdigit() for piece in pieces) / len(pieces)


def sampled_tokens(trajectories: list[Trajectory]) -> int:
    return sum(trajectory.sampled_tokens for trajectory in trajectories)


def turns(trajectories: list[Trajectory]) -> int:
    return sum(len(trajectory.turns) for trajectory in trajectories)
