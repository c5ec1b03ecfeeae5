"""Pairs for DPO: a corrected tool call, and the failed one that it replaced.

CLEANER, appendix C: where SAAR repaired a turn, what it grafted is preferred to what it removed, after the same
context.  The loss on them is in loss_terms/preference.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine.models.tokenizer import default_tokenizer
from engine.spec.trajectory import Trajectory, Turn
from engine.training.batch import Sample, sample_of

_CALL_OPENS = default_tokenizer().tool_open
"""The same in every vocabulary: marks come first."""


class Pair(NamedTuple):
    """Two samples that begin alike; the mask of each holds its own tool call only."""

    chosen: Sample
    rejected: Sample


def pairs_of(trajectories: Sequence[Trajectory]) -> list[Pair]:
    """One pair per repair, in the order of the trajectories.  A repair without two sides is none."""
    return [pair for trajectory in trajectories if trajectory.masked_because is None for pair in _pairs_in(trajectory)]


def _pairs_in(trajectory: Trajectory) -> list[Pair]:
    pairs = []
    for change in trajectory.changes:
        if change.kind != "purified" or change.start >= change.stop or not change.removed_ids:
            continue
        turn = trajectory.turns[change.turn]
        before = [token for earlier in trajectory.turns[: change.turn] for token in _tokens(earlier)]
        before += [*turn.context_ids, *turn.token_ids[: change.start]]
        chosen = turn.token_ids[change.start : change.stop]
        pairs.append(Pair(_ending(before, chosen), _ending(before, change.removed_ids)))
    return pairs


def _tokens(turn: Turn) -> list[int]:
    return [*turn.context_ids, *turn.token_ids]


def _ending(before: list[int], end: Sequence[int]) -> Sample:
    """The loss falls on the tool call alone; the reasoning before it in a deep repair only conditions it (app. C)."""
    reasoning = end.index(_CALL_OPENS) if _CALL_OPENS in end else 0
    return sample_of([*before, *end], [False] * (len(before) + reasoning) + [True] * (len(end) - reasoning))
