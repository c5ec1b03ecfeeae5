"""From the trajectories of a step to one advantage per sampled token, by the recipe's credit.

The maths is in engine/algorithms; here it meets trajectories: which turns are steps, who belongs to whose group,
and what stands for an observation.  A trajectory that is masked counts in its group like any other.  Tokens that
an expert wrote get 0, except from chunk returns, by which imitation is weighed: there they get the expert's own.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from engine.algorithms.attribution import attribution_advantages
from engine.algorithms.chunk_return import chunk_returns
from engine.algorithms.credit import OutcomeCredit, advantages_of
from engine.algorithms.curriculum import attribution_weight
from engine.algorithms.gae import generalised_advantages
from engine.algorithms.gigpo import gigpo_advantages
from engine.algorithms.whitening import whitened
from engine.spec.credit import Attribution, ChunkReturn, Credit, Gae, Gigpo
from engine.spec.estimator import GroupEstimator
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.trajectory import Trajectory, Turn
from engine.training.batch import Sample, per_turn, sample_from_trajectory

TurnAdvantages = list[list[float]]
"""Of one trajectory: per turn, per token of it."""
Values = Callable[[Sequence[Sample]], list[np.ndarray]]
"""A critic's values, aligned with each sample's tokens."""
LABELS = {"good": 1.0, "bad": -1.0}


def token_advantages(
    credit: Credit,
    groups: Sequence[RolloutGroup],
    *,
    step: int,
    values: Values | None = None,
    success_reward: float = 1.0,
) -> list[TurnAdvantages]:
    """Per rollout, group by group.  ``values`` is needed for gae, ``step`` for weights that change over the run.

    ``success_reward`` is what an expert earned whose start does not say so: every expert is a success.
    """
    match credit:
        case Gae():
            assert values is not None, "gae needs a critic"
            return _gae_advantages(credit, rollouts_in(groups), values)
        case Gigpo():
            return _by_group(groups, lambda acting: _gigpo_steps(credit, acting))
        case Attribution():
            alpha = attribution_weight(step, credit.decay_steps, alpha=credit.alpha)
            return _by_group(groups, lambda acting: _attributed_steps(credit, alpha, acting))
        case ChunkReturn():
            return [_chunk_returns(credit, rollout, success_reward) for rollout in rollouts_in(groups)]
        case GroupEstimator():
            advantages = [advantage for group in groups for advantage in credit.advantages(group.rewards)]
        case _:
            advantages = outcome_advantages(credit, groups)
    return [
        _broadcast(rollout, [advantage] * len(rollout.turns))
        for rollout, advantage in zip(rollouts_in(groups), advantages, strict=True)
    ]


def outcome_advantages(credit: OutcomeCredit, groups: Sequence[RolloutGroup]) -> list[float]:
    """One advantage per rollout, group by group; groups may have lost members."""
    widest = max(len(group.rollouts) for group in groups)
    rewards_PG = torch.zeros(len(groups), widest)
    valid_PG = torch.zeros(len(groups), widest, dtype=torch.bool)
    for row, group in enumerate(groups):
        rewards_PG[row, : len(group.rollouts)] = torch.tensor(group.rewards)
        valid_PG[row, : len(group.rollouts)] = True
    return advantages_of(credit, rewards_PG, valid_PG)[valid_PG].tolist()


def critic_targets(
    credit: Gae, samples: Sequence[Sample], rewards: Sequence[float], values: Values
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """V and the returns that V should have been, token by token, of rollouts as they were sampled."""
    estimates = values(samples)
    return estimates, [
        _estimated(credit, sample, values_T, reward)[1]
        for sample, values_T, reward in zip(samples, estimates, rewards, strict=True)
    ]


def _gae_advantages(credit: Gae, trajectories: Sequence[Trajectory], values: Values) -> list[TurnAdvantages]:
    samples = [sample_from_trajectory(rollout, as_sampled=True) for rollout in trajectories]
    rows = [
        _estimated(credit, sample, values_T, rollout.reward)[0]
        for sample, values_T, rollout in zip(samples, values(samples), trajectories, strict=True)
    ]
    if credit.whiten:
        rows = _whitened(rows, [sample.loss_mask for sample in samples])
    return [per_turn(row.tolist(), rollout, as_sampled=True) for row, rollout in zip(rows, trajectories, strict=True)]


def _whitened(rows: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Over all sampled tokens of the step; exactly 0 where they are all equal."""
    values, mask = np.concatenate(rows), np.concatenate(masks)
    teaches = mask.any() and values[mask].min() < values[mask].max()
    scaled = whitened(torch.from_numpy(values), torch.from_numpy(mask)).numpy() if teaches else np.zeros_like(values)
    return np.split(scaled, np.cumsum([len(row) for row in rows])[:-1])


def _estimated(credit: Gae, sample: Sample, values: np.ndarray, reward: float) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns [T]; the reward comes with the last token that the policy sampled."""
    rewards = np.zeros(len(sample), dtype=np.float32)
    sampled = np.flatnonzero(sample.loss_mask)
    if sampled.size:
        rewards[sampled[-1]] = reward
    rewards_1T, values_1T, mask_1T = (torch.from_numpy(x)[None] for x in (rewards, values, sample.loss_mask))
    advantages_1T, returns_1T = generalised_advantages(
        rewards_1T, values_1T, mask_1T, gamma=credit.gamma, lam=credit.lam
    )
    return advantages_1T[0].numpy(), returns_1T[0].numpy()


def _gigpo_steps(credit: Gigpo, group: Sequence[Trajectory]) -> list[list[float]]:
    """A step is a turn that the policy wrote, its anchor what it read right before, its reward on the last one."""
    rewards = [torch.zeros(len(_steps(rollout))) for rollout in group]
    for rewards_K, rollout in zip(rewards, group, strict=True):
        rewards_K[-1] = rollout.reward
    advantages = gigpo_advantages(
        rewards,
        [[turn.context_text for turn in _steps(rollout)] for rollout in group],
        gamma=credit.gamma,
        step_weight=credit.step_weight,
        scale_by_std=credit.scale_by_std,
        episode_mean=credit.episode_mean,
    )
    return [advantages_K.tolist() for advantages_K in advantages]


def _attributed_steps(credit: Attribution, alpha: float, group: Sequence[Trajectory]) -> list[list[float]]:
    """A turn without a verdict anywhere in the group makes the judge's channel neutral for the group."""
    labels = [
        None if any(turn.verdict is None for turn in _steps(rollout))
        else torch.tensor([LABELS[str(turn.verdict)] for turn in _steps(rollout)])
        for rollout in group
    ]  # fmt: skip
    outcomes_G = torch.tensor([rollout.reward for rollout in group])
    advantages = attribution_advantages(
        labels, [len(_steps(rollout)) for rollout in group], outcomes_G, alpha=alpha, scale=credit.scale
    )
    return [advantages_K.tolist() for advantages_K in advantages]


def _chunk_returns(credit: ChunkReturn, trajectory: Trajectory, success_reward: float) -> TurnAdvantages:
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


def _by_group(
    groups: Sequence[RolloutGroup], step_advantages: Callable[[Sequence[Trajectory]], list[list[float]]]
) -> list[TurnAdvantages]:
    """``step_advantages`` of the rollouts of each group that have a step; those without one get no advantage."""
    return [advantages for group in groups for advantages in _of_one_group(group.rollouts, step_advantages)]


def _of_one_group(
    rollouts: Sequence[Trajectory], step_advantages: Callable[[Sequence[Trajectory]], list[list[float]]]
) -> Iterator[TurnAdvantages]:
    acting = [position for position, rollout in enumerate(rollouts) if _steps(rollout)]
    found = step_advantages([rollouts[position] for position in acting]) if acting else []
    advantages = dict(zip(acting, found, strict=True))
    for position, rollout in enumerate(rollouts):
        remaining = iter(advantages.get(position, ()))
        yield _broadcast(rollout, [0.0 if turn.prefilled else next(remaining) for turn in rollout.turns])


def _broadcast(trajectory: Trajectory, advantages: Sequence[float]) -> TurnAdvantages:
    return [
        [0.0 if turn.prefilled else advantage] * len(turn.token_ids)
        for turn, advantage in zip(trajectory.turns, advantages, strict=True)
    ]


def _steps(trajectory: Trajectory) -> list[Turn]:
    return [turn for turn in trajectory.turns if not turn.prefilled]
