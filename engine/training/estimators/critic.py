"""Advantages per token from the values of a critic, and the returns that the critic should have foreseen."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from engine.algorithms.whitening import whitened
from engine.spec.estimator import CriticEstimator, TokenEstimator
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.training.batch import Sample, per_turn, regrouped, samples_from_trajectory
from engine.training.estimators.interface import Occasion, TurnAdvantages, Values, named, one_for_each


class Estimation(Protocol):
    """Advantages and returns [N] of a rollout's sampled tokens in order of time, from rewards, values, mask [N]."""

    def __call__(
        self, credit: Any, rewards: np.ndarray, values: np.ndarray, mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]: ...


def advantages(credit: CriticEstimator, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]:
    assert occasion.values is not None, "a recipe whose credit asks a critic has one"
    trajectories = rollouts_in(groups)
    rollouts = [samples_from_trajectory(trajectory, as_sampled=True) for trajectory in trajectories]
    samples = [sample for of_rollout in rollouts for sample in of_rollout]
    values = regrouped(occasion.values(samples), rollouts)
    rows = [
        row
        for of_rollout, values_ST, trajectory in zip(rollouts, values, trajectories, strict=True)
        for row in _estimated(credit, of_rollout, values_ST, trajectory.reward)[0]
    ]
    if credit.whiten and rows:
        rows = _whitened(rows, [sample.loss_mask for sample in samples])
    return [
        per_turn([row.tolist() for row in of_rollout], trajectory, as_sampled=True)
        for of_rollout, trajectory in zip(regrouped(rows, rollouts), trajectories, strict=True)
    ]


def targets_of(
    credit: CriticEstimator, rollouts: Sequence[Sequence[Sample]], rewards: Sequence[float], values: Values
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """V and the returns that V should have been, token by token, of each sample of rollouts as they were sampled."""
    estimates = values([sample for samples in rollouts for sample in samples])
    returns = [
        row
        for samples, values_ST, reward in zip(rollouts, regrouped(estimates, rollouts), rewards, strict=True)
        for row in _estimated(credit, samples, values_ST, reward)[1]
    ]
    return estimates, returns


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
    credit: CriticEstimator, samples: Sequence[Sample], values: Sequence[np.ndarray], reward: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Advantages and returns [T] of each sample of one trajectory, whose sampled tokens are steps in order of time.

    The reward comes with the last token that the policy sampled.
    """
    order = _order_of_time(samples)
    if not order.size:
        return [np.zeros_like(row) for row in values], [np.zeros_like(row) for row in values]
    rewards_N = np.zeros(len(order), dtype=np.float32)
    rewards_N[-1] = reward
    estimation: Estimation = named(credit.estimated_by)
    estimated = estimation(credit, rewards_N, np.concatenate(values)[order], np.ones(len(order), dtype=np.bool_))
    edges = np.cumsum([len(row) for row in values])[:-1]
    columns = [np.zeros(sum(map(len, values)), dtype=np.float32) for _ in estimated]
    for column, estimated_N in zip(columns, estimated, strict=True):
        column[order] = estimated_N
    advantages, returns = (np.split(column, edges) for column in columns)
    return advantages, returns


def _order_of_time(samples: Sequence[Sample]) -> np.ndarray:
    """Where the sampled tokens stand among all tokens of a trajectory's samples."""
    if not samples:
        return np.zeros(0, dtype=np.int64)
    places = np.flatnonzero(np.concatenate([sample.loss_mask for sample in samples]))
    numbers = [sample.turn_numbers for sample in samples if sample.turn_numbers is not None]
    return places[np.argsort(np.concatenate(numbers)[places], kind="stable")] if numbers else places
