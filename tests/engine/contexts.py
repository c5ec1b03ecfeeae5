"""The token ids that a policy had in its context, read off a trajectory as its segments say."""

from collections.abc import Iterable

from engine.spec.trajectory import Segment, Trajectory, Turn


def ids_before(trajectory: Trajectory, number: int) -> list[int]:
    """What the policy had read and written when it began turn ``number``."""
    for segment, numbers in zip(trajectory.segments, trajectory.turn_numbers, strict=True):
        if number in numbers:
            at = numbers.index(number)
            own = [*_ids_of(segment.turns[:at]), *segment.turns[at].context_ids]
            return [*_shared_ids(trajectory, segment), *own]
    raise IndexError(f"turn {number} of {len(trajectory.turns)}")


def ids_of_segment(trajectory: Trajectory, number: int) -> list[int]:
    """Those of a whole segment, the shared ones first."""
    segment = trajectory.segments[number]
    return [*_shared_ids(trajectory, segment), *_ids_of(segment.turns)]


def _shared_ids(trajectory: Trajectory, segment: Segment) -> list[int]:
    prefix = segment.prefix
    return [] if prefix is None else ids_of_segment(trajectory, prefix.segment)[: prefix.tokens]


def _ids_of(turns: Iterable[Turn]) -> list[int]:
    return [token for turn in turns for part in (turn.context_ids, turn.token_ids) for token in part]
