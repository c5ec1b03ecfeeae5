"""The work that both sides do, step by step: the same spec, prompts, token format, start weights and sizes.

The settings:

``completions``  One turn per rollout, no tool, exactly ``max_turn_tokens`` sampled tokens: stop
    tokens do not stop.  Every trajectory costs both sides the same number of tokens, so this
    compares the machinery alone, and gives continuous batching nothing to gain.
``tool-use``  Whole episodes of python-math from a policy that has been taught to call its tool:
    several turns, each ended by its own stop token, with a sandbox behind the calls.
``slow-tools``  The same with calls that take 50 to 500 ms longer (``benchmarks/slow_python.py``).
``slow-tools-64``, ``slow-tools-32``  The same with fewer rollouts a step, which leave two cores time to wait for tools.

Both sides import this module, so it must not import torch.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory

Setting = Literal["completions", "tool-use", "slow-tools", "slow-tools-64", "slow-tools-32"]
TARGETS: dict[Setting, float] = {
    "completions": 1.2,
    "tool-use": 1.5,
    "slow-tools": 3.0,
    "slow-tools-64": 3.0,
    "slow-tools-32": 3.0,
}
"""Trajectories per second over the peer's that are to be reached."""
SETTINGS: tuple[Setting, ...] = tuple(TARGETS)
ASYNC_RATIO = 2
"""The asynchronous ratio where tools are slow, on our side; ``./dev bench async`` has its target at this one."""
ROLLOUTS: dict[Setting, int] = {"slow-tools-64": 64, "slow-tools-32": 32}
"""The rollouts of a step, where they are not ``PLACES``."""
PLACES = 256
"""The places in the generator, and sandboxes, on our side.  The peer has one of each for every rollout of its batch."""
GROUP_SIZE = 8
BATCH_DELAY_MS = 5.0
"""How long our passes for few wait for those whose tools are at work, where a step's rollouts keep all cores busy."""
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


def has_slow_tools(setting: Setting) -> bool:
    return setting.startswith("slow-tools")


def spec_for(setting: Setting, *, steps: int, threads: int) -> RunSpec:
    """Palestra's default model, group size and recipe, with the resources that are fastest here."""
    rollouts = ROLLOUTS.get(setting, PLACES)
    return RunSpec.model_validate(
        {
            "name": f"benchmark {setting}",
            "environment": _environment(setting),
            "recipe": {"stages": [], "optimizer": {"learning_rate": LEARNING_RATE}},
            "resources": {
                "threads": threads,
                "threads_share": "micro-batches",
                "decoders": threads,
                "batch_delay_ms": BATCH_DELAY_MS if rollouts == PLACES else 0.0,
                "kv_slots": PLACES,
                "share_prefixes": True,
                "sandboxes": 1 if setting == "completions" else PLACES,
            },
            "schedule": _schedule(setting, steps, rollouts),
            "evaluation": {"every": 1000, "tasks": 8, "interim_tasks": 8},
        }
    )


def _schedule(setting: Setting, steps: int, rollouts: int) -> dict[str, Any]:
    """Generation beside training where tools are slow; TRL's trainer that does so wants servers of vLLM."""
    overlapping = {"async_ratio": ASYNC_RATIO, "checkpoint_every": 1000} if has_slow_tools(setting) else {}
    batch = {"prompts_per_step": rollouts // GROUP_SIZE, "group_size": GROUP_SIZE, "minibatch_trajectories": rollouts}
    return {"steps": steps} | batch | overlapping


def _environment(setting: Setting) -> dict[str, Any]:
    described: dict[str, Any] = {
        "max_turns": 1 if setting == "completions" else 5,
        "max_turn_tokens": 32,
        "sandbox": {"reuse": "reset"},  # what is compared are trainers, not the making of sandboxes
    }
    if has_slow_tools(setting):
        described |= {"id": "import", "path": "benchmarks.slow_python:SlowPython"}
    return described


def digit_share(pieces: Sequence[str]) -> float:
    """The reward of ``completions``: a number that differs inside every group, so that no side may skip a gradient."""
    return sum(piece.isdigit() for piece in pieces) / len(pieces)


def sampled_tokens(trajectories: list[Trajectory]) -> int:
    return sum(trajectory.sampled_tokens for trajectory in trajectories)


def turns(trajectories: list[Trajectory]) -> int:
    return sum(len(trajectory.turns) for trajectory in trajectories)
