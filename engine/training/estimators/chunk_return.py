"""Chunk returns: the discounted outcome, turn by turn.

By them imitation is weighed, so tokens that an expert wrote get the expert's own return instead of 0.
"""

from collections.abc import Sequence

from engine.algorithms.chunk_return import chunk_returns
from engine.spec.credit import ChunkReturn
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.trajectory import Trajectory
from engine.training.estimators.interface import Occasion, TurnAdvantages


def advantages(credit: ChunkReturn, groups: Sequence[RolloutGroup], occasion: Occasion) -> list[TurnAdvantages]:
    return [_of_rollout(credit, rollout, occasion.success_reward) for rollout in rollouts_in(groups)]


def _of_rollout(credit: ChunkReturn, trajectory: Trajectory, success_reward: float) -> TurnAdvantages:
    """G_k of the rollout, where K counts the expert's turns too; on those turns G_k of the expert (ALE, eq. 8)."""
    own_K = chunk_returns(trajectory.reward, len(trajectory.turns), gamma=credit.gamma).tolist()
    expert_K = _expert_returns(credit, trajectory, success_reward)
    return [
        [expert_K[number] if turn.prefilled else own_K[number]] * len(turn.token_ids)
        for number, turn in enumerate(trajectory.turns)
    ]


def _expert_returns(credit: ChunkReturn, trajectory: Trajectory, success_reward: float) -> list[float]:
    """Of each turn of the expert, discounted by the distance to the end of the *expert's* trajectory.

    Failed calls may have cost an expert more than its success earned.  Then it is not imitated: at 0, not below.
    """
    start = trajectory.start
    turns = len(trajectory.turns) if start is None else start.turns
    earned = success_reward if start is None or start.reward is None else start.reward
    return chunk_returns(max(0.0, earned), turns, gamma=credit.gamma).tolist()
