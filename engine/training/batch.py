"""What the trainer learns from: token ids as they were sampled, never tokenised again.

Numpy and no torch, so that a sample travels between processes.  Which tokens are learned and which are only read
is decided here, from what stands on the trajectory, and nowhere else.

A trajectory is one sample for each of its segments, side by side and in their order; the first one ``opens`` it.  What
a segment shares with an earlier one is read in both and learned in the earlier one only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from engine.algorithms.stripping import stripped
from engine.spec.trajectory import Trajectory, Turn
from engine.training.imitation import is_imitable

T = TypeVar("T")


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
    """float32, from ``Trainer.old_logprobs``, unless the sample is ``unscored``."""
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
    positions: np.ndarray | None = None
    """int64: where each token stands in its own part of a packed row.  None: the row is one sequence."""
    opens: bool = True
    """It is the first sample of its trajectory; those of the further segments follow it."""
    trained_tokens: int | None = None
    """How many tokens the loss learns in all samples of its trajectory.  None: in its batch every sample is a whole
    trajectory."""
    imitated_tokens: int | None = None
    """The same for ``expert``."""
    unscored: int | None = None
    """Its number among the samples of the one update that is made of them, whose own forward pass gives their old
    log-probs; ``old_logprobs`` then means nothing.  None: the old log-probs are known."""
    turn_numbers: np.ndarray | None = None
    """int64: the turn of each token, counted over the trajectory.  None: samples and their tokens stand in order of
    time."""

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


def samples_from_trajectory(
    trajectory: Trajectory, *, imitation: bool = False, as_sampled: bool = False
) -> list[Sample]:
    """A sample for each segment: its turns in a row, without the experience that was stripped.

    A trajectory that is masked keeps its tokens and trains on none of the policy's (``Sample.masked``); so does a
    turn that is masked, or that an expert wrote.  ``imitation`` marks the expert's turns that are imitated.
    ``as_sampled`` is what the policy had before it and all that it wrote: nothing stripped, nothing masked.
    Advantages and old log-probs that are still None become 0.
    """
    samples = unmasked_samples(trajectory, imitation=imitation, as_sampled=as_sampled)
    return samples if as_sampled else [sample.masked(trajectory.masked_because) for sample in samples]


def unmasked_samples(trajectory: Trajectory, *, imitation: bool = False, as_sampled: bool = False) -> list[Sample]:
    """As ``samples_from_trajectory``, whether the trajectory is masked or not; the masks of single turns hold."""
    is_stripped = not as_sampled and any(change.kind == "stripped" for change in trajectory.changes)
    samples = []
    for number, row in enumerate(_rows(trajectory, as_sampled=as_sampled)):
        columns: tuple[list[Any], ...] = ([*row.shared], *([0.0] * len(row.shared) for _ in range(5)))
        for context_ids, turn in row.turns:
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
            sample = replace(sample, expert=np.asarray(expert, dtype=np.bool_))
        if is_stripped:
            sample = replace(sample, boosted=sample.loss_mask.copy())
        samples.append(replace(sample, opens=number == 0, turn_numbers=row.turn_numbers))
    return samples


@dataclass(frozen=True)
class _Row:
    """What a segment's sample is made of."""

    shared: list[int]
    """The beginning that stands in an earlier segment."""
    turns: list[tuple[list[int], Turn]]
    """With what of the turn's context is left."""
    numbers: list[int] | None
    """The numbers of the turns, where segments were written side by side."""

    @property
    def turn_numbers(self) -> np.ndarray | None:
        if self.numbers is None:
            return None
        lengths = [len(context_ids) + len(turn.token_ids) for context_ids, turn in self.turns]
        of_turns = np.repeat(np.asarray(self.numbers, dtype=np.int64), lengths)
        return np.concatenate([np.full(len(self.shared), -1, dtype=np.int64), of_turns])


def _rows(trajectory: Trajectory, *, as_sampled: bool) -> list[_Row]:
    """By segment; what was stripped is gone from the shared beginnings too."""
    spans = {} if as_sampled else stripped_spans(trajectory)
    is_shared = any(segment.prefix is not None for segment in trajectory.segments)
    is_parallel = any(segment.numbers is not None for segment in trajectory.segments)
    whole: list[list[tuple[int, bool]]] = []
    rows = []
    for segment, numbers in zip(trajectory.segments, trajectory.turn_numbers, strict=True):
        prefix = segment.prefix
        sequence = [] if prefix is None else whole[prefix.segment][: prefix.tokens]
        shared = [token for token, stays in sequence if stays]
        turns = []
        for number, turn in zip(numbers, segment.turns, strict=True):
            of_turn = spans.get(number, [])
            turns.append((stripped(turn.context_ids, of_turn), turn))
            if is_shared:
                sequence += [(token, not _is_in(place, of_turn)) for place, token in enumerate(turn.context_ids)]
                sequence += [(token, True) for token in turn.token_ids]
        whole.append(sequence)
        rows.append(_Row(shared, turns, numbers if is_parallel else None))
    return rows


def _is_in(place: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start <= place < stop for start, stop in spans)


def stripped_spans(trajectory: Trajectory) -> dict[int, list[tuple[int, int]]]:
    """Per turn, where its ``context_ids`` hold experience that is taken out of training."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for change in trajectory.changes:
        if change.kind == "stripped":
            spans.setdefault(change.turn, []).append((change.start, change.stop))
    return spans


def ids_learned_behind(trajectory: Trajectory, number: int) -> list[int]:
    """Return what stands before turn ``number`` in its sample: all that the policy had, without what was stripped."""
    for row, numbers in zip(_rows(trajectory, as_sampled=False), trajectory.turn_numbers, strict=True):
        if number in numbers:
            at = numbers.index(number)
            earlier = [part for context_ids, turn in row.turns[:at] for part in (context_ids, turn.token_ids)]
            return [*row.shared, *(token for part in earlier for token in part), *row.turns[at][0]]
    raise IndexError(f"turn {number} of {len(trajectory.turns)}")


def per_turn(
    values: Sequence[Sequence[float]], trajectory: Trajectory, *, as_sampled: bool = False
) -> list[list[float]]:
    """Values aligned with each of a trajectory's samples, cut to the sampled tokens of each of its turns."""
    cut: dict[int, list[float]] = {}
    rows = _rows(trajectory, as_sampled=as_sampled)
    for row, of_sample, numbers in zip(rows, values, trajectory.turn_numbers, strict=True):
        position = len(row.shared)
        for number, (context_ids, turn) in zip(numbers, row.turns, strict=True):
            position += len(context_ids)
            cut[number] = list(of_sample[position : position + len(turn.token_ids)])
            position += len(turn.token_ids)
        if position != len(of_sample):
            raise ValueError(f"{len(of_sample)} values for a sample of {position} tokens")
    return [cut[number] for number in range(len(cut))]


def by_trajectory(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    """Samples side by side, cut into those of each trajectory."""
    openings = [place for place, sample in enumerate(samples) if sample.opens]
    if samples and (not openings or openings[0] != 0):
        raise ValueError("the first sample belongs to a trajectory that another sample opens")
    return [samples[start:stop] for start, stop in zip(openings, [*openings[1:], len(samples)], strict=False)]


def regrouped(entries: Sequence[T], like: Sequence[Sequence[object]]) -> list[Sequence[T]]:
    """The entries in groups of the sizes of those of ``like``."""
    edges = np.cumsum([0, *map(len, like)]).tolist()
    return [entries[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]


def _array(values: Sequence[float] | np.ndarray | None, length: int, dtype: type, name: str) -> np.ndarray:
    array: np.ndarray = np.zeros(length, dtype=dtype) if values is None else np.asarray(values, dtype=dtype)
    if array.shape != (length,):
        raise ValueError(f"{name} has {len(array)} entries for {length} tokens")
    return array
