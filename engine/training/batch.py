"""What the trainer learns from: token ids as they were sampled, never tokenised again.

Numpy and no torch, so that a sample travels between processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.spec.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class Sample:
    """One sequence.  Every array has one entry per token of ``token_ids``; outside the mask its values mean nothing."""

    token_ids: np.ndarray
    """int64."""
    loss_mask: np.ndarray
    """bool: True on tokens that the policy sampled, False on prompt and tool output."""
    advantages: np.ndarray
    """float32."""
    rollout_logprobs: np.ndarray
    """float32, as the generator reported them."""
    old_logprobs: np.ndarray
    """float32, from ``Trainer.old_logprobs``."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def learned_length(self) -> int:
        """Tokens up to the last one that is learned; what follows it teaches nothing."""
        learned = np.flatnonzero(self.loss_mask)
        return int(learned[-1]) + 1 if learned.size else 0

    def with_old_logprobs(self, values: Sequence[float]) -> "Sample":
        return replace(self, old_logprobs=_array(values, len(self), np.float32, "old_logprobs"))


def sample_of(
    token_ids: Sequence[int],
    loss_mask: Sequence[bool],
    *,
    advantages: Sequence[float] | None = None,
    rollout_logprobs: Sequence[float] | None = None,
    old_logprobs: Sequence[float] | None = None,
) -> Sample:
    """A sample from plain lists.  Raises ValueError if they differ in length or the first token is to be learned:
    nothing stands before it that could predict it."""
    length = len(token_ids)
    sample = Sample(
        token_ids=_array(token_ids, length, np.int64, "token_ids"),
        loss_mask=_array(loss_mask, length, np.bool_, "loss_mask"),
        advantages=_array(advantages, length, np.float32, "advantages"),
        rollout_logprobs=_array(rollout_logprobs, length, np.float32, "rollout_logprobs"),
        old_logprobs=_array(old_logprobs, length, np.float32, "old_logprobs"),
    )
    if length == 0 or sample.loss_mask[0]:
        raise ValueError("a sample begins with a token that is given, not sampled")
    return sample


def sample_from_trajectory(trajectory: Trajectory) -> Sample:
    """All turns in a row.  A trajectory that is masked keeps its tokens and trains on none.

    Advantages and old log-probs that are still None become 0.
    """
    masked = trajectory.masked_because is not None
    columns: tuple[list[Any], ...] = ([], [], [], [], [])
    for turn in trajectory.turns:
        given, sampled = len(turn.context_ids), len(turn.token_ids)
        zeros = [0.0] * sampled
        parts: tuple[list[Any], ...] = (
            [*turn.context_ids, *turn.token_ids],
            [False] * given + [not masked] * sampled,
            [0.0] * given + (turn.advantages or zeros),
            [0.0] * given + turn.logprobs,
            [0.0] * given + (turn.old_logprobs or zeros),
        )
        for column, part in zip(columns, parts, strict=True):
            column.extend(part)
    token_ids, loss_mask, advantages, rollout_logprobs, old_logprobs = columns
    return sample_of(
        token_ids, loss_mask, advantages=advantages, rollout_logprobs=rollout_logprobs, old_logprobs=old_logprobs
    )


def per_turn(values: Sequence[float], trajectory: Trajectory) -> list[list[float]]:
    """Values aligned with a trajectory's sample, cut to the sampled tokens of each turn."""
    cut, position = [], 0
    for turn in trajectory.turns:
        position += len(turn.context_ids)
        cut.append(list(values[position : position + len(turn.token_ids)]))
        position += len(turn.token_ids)
    if position != len(values):
        raise ValueError(f"{len(values)} values for a trajectory of {position} tokens")
    return cut


def _array(values: Sequence | None, length: int, dtype: type, name: str) -> np.ndarray:
    array: np.ndarray = np.zeros(length, dtype=dtype) if values is None else np.asarray(values, dtype=dtype)
    if array.shape != (length,):
        raise ValueError(f"{name} has {len(array)} entries for {length} tokens")
    return array
