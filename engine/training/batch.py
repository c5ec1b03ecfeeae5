"""What the trainer learns from: token ids as they were sampled, never tokenised again.

Numpy and no torch, so that a sample travels between processes.  Which tokens are learned and which are only read
is decided here, from what stands on the trajectory, and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.algorithms.stripping import stripped
from engine.spec.trajectory import Trajectory, Turn
from engine.training.imitation import is_imitable


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
    expert: np.ndarray | None = None
    """bool: True on an expert's tokens that are imitated.  This column and the next ones are None where nothing
    needs them."""
    boosted: np.ndarray | None = None
    """bool: True where experience that the policy read was stripped."""
    kept: np.ndarray | None = None
    """bool: False on tokens whose loss is dropped to keep entropy."""
    penalised: np.ndarray | None = None
    """bool: True on tokens that KL-Cov holds back."""
    values: np.ndarray | None = None
    """float32: the critic's, before its update."""
    returns: np.ndarray | None = None
    """float32: what the critic learns."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def scored(self) -> np.ndarray:
        """bool: the tokens whose log-prob is computed, those of the policy and those that are imitated."""
        return self.loss_mask if self.expert is None else self.loss_mask | self.expert

    @property
    def learned_length(self) -> int:
        """Tokens up to the last one that is learned; what follows it teaches nothing."""
        learned = np.flatnonzero(self.scored)
        return int(learned[-1]) + 1 if learned.size else 0

    def masked(self, because: str | None) -> "Sample":
        """The sample of a rollout that is masked for this reason, or is not masked: None.

        Nothing that the policy wrote is then learned; what is imitated still is, unless the rollout is quarantined.
        """
        if because is None:
            return self
        nothing = np.zeros_like(self.loss_mask)
        return replace(
            self,
            loss_mask=nothing,
            boosted=None if self.boosted is None else nothing.copy(),
            expert=self.expert if is_imitable(because) else None,
        )

    def with_old_logprobs(self, values: Sequence[float] | np.ndarray) -> "Sample":
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


def sample_from_trajectory(trajectory: Trajectory, *, imitation: bool = False, as_sampled: bool = False) -> Sample:
    """All turns in a row, without the experience that was stripped.

    A trajectory that is masked keeps its tokens and trains on none of the policy's (``Sample.masked``); so does a
    turn that is masked, or that an expert wrote.  ``imitation`` marks the expert's turns that are imitated.
    ``as_sampled`` is what the policy had before it and all that it wrote: nothing stripped, nothing masked.
    Advantages and old log-probs that are still None become 0.
    """
    sample = unmasked_sample(trajectory, imitation=imitation, as_sampled=as_sampled)
    return sample if as_sampled else sample.masked(trajectory.masked_because)


def unmasked_sample(trajectory: Trajectory, *, imitation: bool = False, as_sampled: bool = False) -> Sample:
    """As ``sample_from_trajectory``, whether the trajectory is masked or not; the masks of single turns hold."""
    spans = {} if as_sampled else stripped_spans(trajectory)
    columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
    for number, turn in enumerate(trajectory.turns):
        context_ids = _context_of(turn, spans.get(number, []))
        given, sampled = len(context_ids), len(turn.token_ids)
        zeros = [0.0] * sampled
        learned = not turn.prefilled and (turn.masked_because is None or as_sampled)
        imitated = imitation and turn.imitated and turn.masked_because is None
        parts: tuple[list[Any], ...] = (
            [*context_ids, *turn.token_ids],
            [False] * given + [learned] * sampled,
            [0.0] * given + (turn.advantages or zeros),
            [0.0] * given + turn.logprobs,
            [0.0] * given + (turn.old_logprobs or zeros),
            [False] * given + [imitated] * sampled,
        )
        for column, part in zip(columns, parts, strict=True):
            column.extend(part)
    token_ids, loss_mask, advantages, rollout_logprobs, old_logprobs, expert = columns
    sample = sample_of(
        token_ids, loss_mask, advantages=advantages, rollout_logprobs=rollout_logprobs, old_logprobs=old_logprobs
    )
    if any(expert):
        sample = replace(sample, expert=np.asarray(expert))
    return replace(sample, boosted=sample.loss_mask.copy()) if spans else sample


def stripped_spans(trajectory: Trajectory) -> dict[int, list[tuple[int, int]]]:
    """Per turn, where its ``context_ids`` hold experience that is taken out of training."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for change in trajectory.changes:
        if change.kind == "stripped":
            spans.setdefault(change.turn, []).append((change.start, change.stop))
    return spans


def per_turn(values: Sequence[float], trajectory: Trajectory, *, as_sampled: bool = False) -> list[list[float]]:
    """Values aligned with a trajectory's sample, cut to the sampled tokens of each turn."""
    spans = {} if as_sampled else stripped_spans(trajectory)
    cut, position = [], 0
    for number, turn in enumerate(trajectory.turns):
        position += len(_context_of(turn, spans.get(number, [])))
        cut.append(list(values[position : position + len(turn.token_ids)]))
        position += len(turn.token_ids)
    if position != len(values):
        raise ValueError(f"{len(values)} values for a trajectory of {position} tokens")
    return cut


def _context_of(turn: Turn, spans: Sequence[tuple[int, int]]) -> list[int]:
    return stripped(turn.context_ids, spans)


def _array(values: Sequence[float] | np.ndarray | None, length: int, dtype: type, name: str) -> np.ndarray:
    array: np.ndarray = np.zeros(length, dtype=dtype) if values is None else np.asarray(values, dtype=dtype)
    if array.shape != (length,):
        raise ValueError(f"{name} has {len(array)} entries for {length} tokens")
    return array
