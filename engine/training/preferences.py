"""Pairs for DPO: a corrected tool call, and the failed one that it replaced.

CLEANER, appendix C: where SAAR repaired a turn, what it grafted is preferred to what it removed, after the same
context, of which training does not see what was stripped.  The loss on them is in loss_terms/preference.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine.spec.trajectory import Trajectory
from engine.training.batch import Sample, ids_learned_behind, sample_of


class Pair(NamedTuple):
    """Two samples that begin alike; the mask of each holds its own tool call only."""

    chosen: Sample
    rejected: Sample


def pairs_of(trajectories: Sequence[Trajectory], call_opens: int | None) -> list[Pair]:
    """One pair per repair, in the order of the trajectories.  A repair without two sides is none.

    ``call_opens`` is the token that begins a tool call.  Where calls begin with text there is none, and in a deep
    repair the loss falls on the reasoning too.
    """
    trained = [trajectory for trajectory in trajectories if trajectory.masked_because is None]
    return [pair for trajectory in trained for pair in _pairs_in(trajectory, call_opens)]


def _pairs_in(trajectory: Trajectory, call_opens: int | None) -> list[Pair]:
    pairs = []
    for change in trajectory.changes:
        if change.kind != "purified" or change.start >= change.stop or not change.removed_ids:
            continue
        turn = trajectory.turns[change.turn]
        before = [*ids_learned_behind(trajectory, change.turn), *turn.token_ids[: change.start]]
        chosen = turn.token_ids[change.start : change.stop]
        pairs.append(Pair(_ending(before, chosen, call_opens), _ending(before, change.removed_ids, call_opens)))
    return pairs


def _ending(before: list[int], end: Sequence[int], call_opens: int | None) -> Sample:
    """The loss falls on the tool call alone; the reasoning before it in a deep repair only conditions it (app. C)."""
    reasoning = end.index(call_opens) if call_opens is not None and call_opens in end else 0
    return sample_of([*before, *end], [False] * (len(before) + reasoning) + [True] * (len(end) - reasoning))
