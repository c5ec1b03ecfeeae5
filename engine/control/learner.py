"""The member of the crew that owns the weights: a trainer, the recipe's credit, and the cold start's data.

A plain class without asyncio or Ray: an actor or a thread calls it, one call at a time.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from engine.algorithms.credit import advantages_of
from engine.rollout.demonstrations import demonstrations
from engine.rollout.environments import environment_for
from engine.spec.recipe import Credit
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory
from engine.training.batch import Sample, per_turn, sample_from_trajectory
from engine.training.trainer import Trainer


class Learner:
    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._trainer = Trainer(spec)

    def cold_start(self, first: int, last: int) -> float:
        """Supervised steps ``first`` .. ``last`` (from 1); the mean loss."""
        history = self._trainer.cold_start(self._demonstrations, steps=last - first + 1, first_step=first - 1)
        return fmean(metrics["loss"] for metrics in history)

    def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Group-relative advantages and the frozen policy's log-probs, turn by turn."""
        old_logprobs = self._trainer.old_logprobs([sample_from_trajectory(one) for one in trajectories])
        advantages = trajectory_advantages(self._spec.recipe.credit, trajectories)
        return [
            _credited(trajectory, advantage, values)
            for trajectory, advantage, values in zip(trajectories, advantages, old_logprobs, strict=True)
        ]

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        return self._trainer.update([sample_from_trajectory(one) for one in trajectories])

    def weights(self) -> dict[str, Tensor]:
        return self._trainer.weights()

    def save(self, folder: Path) -> None:
        self._trainer.save(folder)

    def load(self, folder: Path) -> None:
        self._trainer.load(folder)

    @cached_property
    def _demonstrations(self) -> list[Sample]:
        recipe = self._spec.recipe
        assert recipe.cold_start is not None, "the loop asks for a cold start only if the recipe has one"
        scripted = demonstrations(environment_for(self._spec), recipe.cold_start, recipe.reward, seed=self._spec.seed)
        return [sample_from_trajectory(one) for one in scripted]


def trajectory_advantages(credit: Credit, trajectories: Sequence[Trajectory]) -> list[float]:
    """One advantage per trajectory, whose groups may have lost members."""
    groups: dict[int, list[int]] = defaultdict(list)
    for position, trajectory in enumerate(trajectories):
        groups[trajectory.group].append(position)
    widest = max(map(len, groups.values()))
    rewards_PG = torch.zeros(len(groups), widest)
    valid_PG = torch.zeros(len(groups), widest, dtype=torch.bool)
    for row, positions in enumerate(groups.values()):
        rewards_PG[row, : len(positions)] = torch.tensor([trajectories[one].reward for one in positions])
        valid_PG[row, : len(positions)] = True
    advantages_PG = advantages_of(credit, rewards_PG, valid_PG)
    advantages = [0.0] * len(trajectories)
    for row, positions in enumerate(groups.values()):
        for column, position in enumerate(positions):
            advantages[position] = float(advantages_PG[row, column])
    return advantages


def _credited(trajectory: Trajectory, advantage: float, old_logprobs: Sequence[float]) -> Trajectory:
    turns = [
        turn.model_copy(update={"advantages": [advantage] * len(turn.token_ids), "old_logprobs": values})
        for turn, values in zip(trajectory.turns, per_turn(old_logprobs, trajectory), strict=True)
    ]
    return trajectory.model_copy(update={"turns": turns})
