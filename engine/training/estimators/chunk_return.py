"""Chunk returns: the discounted outcome, turn by turn.

By them imitation is weighed, so tokens that an expert wrote get the expert's own return instead of 0.
"""

import math
from collections.abc import Sequence

import torch

from engine.algorithms.call_rewards import call_rewards
from engine.algorithms.chunk_return import chunk_returns
from engine.spec.credit import ChunkReturn
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.trajectory import Trajectory
from engine.training.estimators.interface import Occasion, TurnAdvantages


def advantages(credit: ChunkReturn, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]:
    return [_of_rollout(credit, rollout, occasion.success_reward) for rollout in rollouts_in(groups)]


def _of_rollout(credit: ChunkReturn, trajectory: Trajectory, success_reward: float) -> TurnAdvantages:
    """G_k of the rollout, where K counts the expert's turns too; on those turns G_k of the expert (ALE, eq. 8)."""
    own_K = _own_returns(credit, trajectory)
    expert_K = _expert_returns(credit, trajectory, success_reward)
    return [
        [expert_K[number] if turn.prefilled else own_K[number]] * len(turn.token_ids)
        for number, turn in enumerate(trajectory.turns)
    ]


def _own_returns(credit: ChunkReturn, trajectory: Trajectory) -> list[float]:
    if not credit.intrinsic:
        return chunk_returns(trajectory.reward, len(trajectory.turns), gamma=credit.gamma).tolist()
    intrinsic_K = _call_rewards(trajectory)
    rest = trajectory.reward - math.fsum(intrinsic_K)
    return chunk_returns(
        rest, len(trajectory.turns), gamma=credit.gamma, intrinsic_K=torch.tensor(intrinsic_K)
    ).tolist()


def _call_rewards(trajectory: Trajectory) -> list[float]:
    """r_k of each turn.  Calls of an expert's turns were neither paid nor charged."""
    own = [[] if turn.prefilled else turn.tool_calls for turn in trajectory.turns]
    return call_rewards(
        [sum(not call.failed for call in calls) for calls in own],
        [sum(call.failed for call in calls) for calls in own],
        for_calls=trajectory.rewards.get("tool_calls", 0.0),
        for_errors=trajectory.rewards.get("tool_errors", 0.0),
    )


def _expert_returns(credit: ChunkReturn, trajectory: Trajectory, success_reward: float) -> list[float]:
    """The returns of each turn of the expert, discounted by the distance to the end of the *expert's* trajectory.

    Failed calls may have cost an expert more than its success earned.  Then it is not imitated: at 0, not below.
    """
    start = trajectory.start
    turns = len(trajectory.turns) if start is None else start.turns
    earned = success_reward if start is None or start.reward is None else start.reward
    return chunk_returns(max(0.0, earned), turns, gamma=credit.gamma).tolist()
