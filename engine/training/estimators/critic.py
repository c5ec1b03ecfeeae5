"""Advantages per token from the values of a critic, and the returns that the critic should have foreseen."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from engine.algorithms.whitening import whitened
from engine.spec.estimator import CriticEstimator, TokenEstimator
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.training.batch import Sample, per_turn, sample_from_trajectory
from engine.training.estimators.interface import Occasion, TurnAdvantages, Values, named, one_for_each


class Estimation(Protocol):
    """Advantages and returns [T] of one rollout, from its rewards, values and loss mask [T]."""

    def __call__(
        self, credit: Any, rewards: np.ndarray, values: np.ndarray, mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]: ...


def advantages(credit: CriticEstimator, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]:
    assert occasion.values is not None, "a recipe whose credit asks a critic has one"
    rollouts = rollouts_in(groups)
    samples = [sample_from_trajectory(rollout, as_sampled=True) for rollout in rollouts]
    rows = [
        _estimated(credit, sample, values_T, rollout.reward)[0]
        for sample, values_T, rollout in zip(samples, occasion.values(samples), rollouts, strict=True)
    ]
    if credit.whiten:
        rows = _whitened(rows, [sample.loss_mask for sample in samples])
    return [per_turn(row.tolist(), rollout, as_sampled=True) for row, rollout in zip(rows, rollouts, strict=True)]


def targets_of(
    credit: CriticEstimator, samples: Sequence[Sample], rewards: Sequence[float], values: Values
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """V and the returns that V should have been, token by token, of rollouts as they were sampled."""
    estimates = values(samples)
    return estimates, [
        _estimated(credit, sample, values_T, reward)[1]
        for sample, values_T, reward in zip(samples, estimates, rewards, strict=True)
    ]


def in_plain_numbers(
    credit: TokenEstimator, rewards: np.ndarray, values: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """By the estimator's own ``estimates``, which sees the tokens that the policy sampled and no others."""
    of_advantages, of_returns = credit.estimates(rewards[mask].tolist(), values[mask].tolist())
    return _spread(credit, of_advantages, mask), _spread(credit, of_returns, mask)


def _spread(credit: TokenEstimator, column: Sequence[float], mask: np.ndarray) -> np.ndarray:
    spread = np.zeros(len(mask), dtype=np.float32)
    spread[mask] = one_for_each(credit, column, int(mask.sum()), "sampled tokens of a rollout")
    return spread


def _whitened(rows: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Over all sampled tokens of the step; exactly 0 where they are all equal."""
    values, mask = np.concatenate(rows), np.concatenate(masks)
    teaches = mask.any() and values[mask].min() < values[mask].max()
    scaled = whitened(torch.from_numpy(values), torch.from_numpy(mask)).numpy() if teaches else np.zeros_like(values)
    return np.split(scaled, np.cumsum([len(row) for row in rows])[:-1])


def _estimated(
    credit: CriticEstimator, sample: Sample, values: np.ndarray, reward: float
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns [T]; the reward comes with the last token that the policy sampled."""
    rewards = np.zeros(len(sample), dtype=np.float32)
    sampled = np.flatnonzero(sample.loss_mask)
    if sampled.size:
        rewards[sampled[-1]] = reward
    estimation: Estimation = named(credit.estimated_by)
    return estimation(credit, rewards, values, sample.loss_mask)
