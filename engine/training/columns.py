"""What the loop and the learner tell each other of a step's rollouts.  A trajectory itself crosses once.

    loop ── groups ───► learner    credit: makes samples of the trajectories, and keeps the samples until the update
    loop ◄── columns ── learner    numbers per sampled token, which the loop joins to the trajectories that it holds
    loop ── request ──► learner    update: ids and what was decided about them, and no token
    loop ◄── metrics ── learner    and the old log-probs, where the update's own forward pass gave them

Numpy and no torch, since the loop's process joins.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from typing import Literal, Self

import numpy as np

from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.trajectory import Trajectory
from engine.training.experience import with_experience_stripped
from engine.training.imitation import imitating_all
from engine.training.mismatch import with_mismatch_masked


@dataclass(frozen=True, eq=False, slots=True)
class CreditColumns:
    """What credit says of one rollout.

    Every array has one entry per token of ``Turn.token_ids``, turn after turn, those of an expert's turns included.
    """

    advantages: np.ndarray
    """float64, as the estimators compute them."""
    old_logprobs: np.ndarray | None
    """float32, in nats.  None: the update gives them (``Updated``)."""
    imitates_all: bool = False
    """Imitation learns every turn that was replayed, since no rollout of the group succeeded."""
    stripped_because: Literal["strip", "hybrid"] | None = None
    """Why training does not see the experience that the policy was shown; None where it does."""
    mismatch_masked: np.ndarray | None = None
    """bool: the tokens that the mismatch mask keeps out of the update; None where it keeps none out."""
    mismatch_bound: float | None = None
    """The ratio above which a token is kept out."""


def column(per_turn: Iterable[Sequence[float]], dtype: type) -> np.ndarray:
    """The values of all turns in a row."""
    return np.asarray([value for values in per_turn for value in values], dtype=dtype)


def turns_of(values: np.ndarray, trajectory: Trajectory) -> list[list[float]]:
    """A column cut into the turns of its trajectory.  Raises ValueError if it has not one entry per sampled token."""
    lengths = [len(turn.token_ids) for turn in trajectory.turns]
    if sum(lengths) != len(values):
        raise ValueError(f"a column of {len(values)} entries for the {sum(lengths)} tokens of {trajectory.id}")
    uncut = iter(values.tolist())
    return [list(islice(uncut, length)) for length in lengths]


def with_columns(trajectory: Trajectory, columns: CreditColumns, *, text_of: Callable[[list[int]], str]) -> Trajectory:
    """The trajectory with what credit says of it in its turns, and as changes what training leaves out of it.

    What an earlier credit left out no longer counts: a rollout that an alert kept from its update is credited again.
    ``text_of`` decodes token ids: a reader sees the experience that was stripped.
    """
    kept = [change for change in trajectory.changes if change.kind not in ("stripped", "mismatch-masked")]
    fresh = trajectory if kept == trajectory.changes else trajectory.model_copy(update={"changes": kept})
    credited = imitating_all(fresh) if columns.imitates_all else fresh
    advantages = turns_of(columns.advantages, trajectory)
    turns = [
        turn.model_copy(update={"advantages": values, "old_logprobs": None})
        for turn, values in zip(credited.turns, advantages, strict=True)
    ]
    credited = credited.with_turns(turns)
    if columns.old_logprobs is not None:
        credited = with_old_logprobs(credited, columns.old_logprobs)
    if columns.stripped_because is not None:
        credited = with_experience_stripped(credited, columns.stripped_because, text_of=text_of)
    if columns.mismatch_masked is None or columns.mismatch_bound is None:
        return credited
    return with_mismatch_masked(credited, turns_of(columns.mismatch_masked, trajectory), bound=columns.mismatch_bound)


def with_old_logprobs(trajectory: Trajectory, old_logprobs: np.ndarray) -> Trajectory:
    """The trajectory with its tokens' log-probs under the policy before the update."""
    turns = [
        turn.model_copy(update={"old_logprobs": values})
        for turn, values in zip(trajectory.turns, turns_of(old_logprobs, trajectory), strict=True)
    ]
    return trajectory.with_turns(turns)


@dataclass(frozen=True, slots=True)
class RolloutDecision:
    """What the loop has decided about a credited rollout, an alert that came after its credit included."""

    trajectory: str
    """Its id."""
    masked_because: str | None
    """Why none of the policy's tokens in it is trained on, or None."""


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """All that an update is told."""

    step: int
    rollouts: tuple[RolloutDecision, ...]
    """Those of the step's groups in their order, then those of earlier steps that came out of quarantine.  None where
    the step was not credited because nothing in it teaches."""
    group_means: tuple[float, ...]
    """The mean reward of each whole group of the step, masked rollouts included.  A group all of whose rollouts
    raised an alert stands for nothing and has none."""

    @classmethod
    def of(cls, step: int, groups: Sequence[RolloutGroup], released: Sequence[Trajectory], *, credited: bool) -> Self:
        """The request for what is kept of a step and for what is ``released``, as decided at this moment."""
        trained = [*rollouts_in(groups), *released] if credited else []
        return cls(
            step,
            tuple(RolloutDecision(rollout.id, rollout.masked_because) for rollout in trained),
            tuple(fmean(group.rewards) for group in groups if not all(rollout.alerts for rollout in group.rollouts)),
        )


@dataclass(frozen=True, eq=False, slots=True)
class Updated:
    """What an update answers."""

    metrics: dict[str, float]
    """They are the learner's, without prefix."""
    old_logprobs: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By the ids of the rollouts whose credit left them open; as in ``CreditColumns``, 0 where a mask came later."""
