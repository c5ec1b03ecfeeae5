"""The calls of a trajectory as a tree: which segment leaves which, where, and what each call cost."""

from dataclasses import dataclass
from typing import Self

from engine.spec.branches import passages_of
from engine.spec.trajectory import Trajectory, Turn
from webapp.security.turns import Watched

DEEPEST = 6
"""Segments further from the first one are drawn no deeper."""


@dataclass(frozen=True)
class CallCost:
    """Tokens of one call of the policy."""

    shared: int
    """Stood in its segment before: read or sampled by an earlier call."""
    read: int
    """Read anew."""
    sampled: int


@dataclass(frozen=True)
class Call:
    number: int
    """The turn's, counted from 1 on."""
    cost: CallCost
    generation_s: float | None
    """How long the generator took for it; None where that is not known."""
    tools_s: float | None
    """The seconds of its tool calls; None where there are none, or where an agent made them itself."""
    alerts: int


@dataclass(frozen=True)
class OutlinedSegment:
    number: int
    """From 1 on."""
    depth: int
    leaves: int | None
    """The number of the turn in or behind which it leaves another segment; None: it shares nothing."""
    shared: int
    calls: list[Call]


@dataclass(frozen=True)
class Times:
    """Where the time of a trajectory went, in seconds.  An agent may have several calls under way at once: the parts
    may then add up to more than ``whole_s``."""

    generation_s: float
    tools_s: float | None
    """None where an agent made its calls itself."""
    whole_s: float
    """From the request for the first turn to the end of the last turn or tool call."""


@dataclass(frozen=True)
class Outline:
    segments: list[OutlinedSegment]
    """Each behind the one that it leaves."""
    total: CallCost
    times: Times | None
    """None where no turn says when it began."""

    @classmethod
    def of(cls, trajectory: Trajectory, watched: dict[int, Watched]) -> Self:
        costs = costs_of(trajectory)
        total = CallCost(
            *(sum(getattr(cost, name) for cost in costs.values()) for name in ("shared", "read", "sampled"))
        )
        segments = [_outlined(trajectory, number, depth, costs, watched) for number, depth in _in_depth(trajectory)]
        return cls(segments, total, times_of(trajectory))


def costs_of(trajectory: Trajectory) -> dict[int, CallCost]:
    """By the number of the turn, from 0 on."""
    costs = {}
    for segment, numbers in zip(trajectory.segments, trajectory.turn_numbers, strict=True):
        before = 0 if segment.prefix is None else segment.prefix.tokens
        for number, turn in zip(numbers, segment.turns, strict=True):
            costs[number] = CallCost(before, len(turn.context_ids), len(turn.token_ids))
            before += turn.token_count
    return costs


def times_of(trajectory: Trajectory) -> Times | None:
    timed = [(turn.began_at, turn.seconds or 0.0) for turn in trajectory.turns if turn.began_at is not None]
    if not timed:
        return None
    calls = [call for turn in trajectory.turns for call in turn.tool_calls]
    ends = [began_at + seconds for began_at, seconds in timed]
    ends += [call.began_at + call.seconds for call in calls if call.began_at is not None]
    return Times(
        generation_s=sum(seconds for _, seconds in timed),
        tools_s=None if trajectory.agent is not None else sum(call.seconds for call in calls),
        whole_s=max(ends) - min(began_at for began_at, _ in timed),
    )


def _in_depth(trajectory: Trajectory) -> list[tuple[int, int]]:
    """The segments' numbers and depths, each segment before those that leave it."""
    children: dict[int | None, list[int]] = {}
    for number, segment in enumerate(trajectory.segments):
        children.setdefault(None if segment.prefix is None else segment.prefix.segment, []).append(number)
    found, waiting = [], [(number, 0) for number in children.get(None, [])[::-1]]
    while waiting:
        number, depth = waiting.pop()
        found.append((number, min(depth, DEEPEST)))
        waiting += [(child, depth + 1) for child in children.get(number, [])[::-1]]
    return found


def _outlined(
    trajectory: Trajectory, number: int, depth: int, costs: dict[int, CallCost], watched: dict[int, Watched]
) -> OutlinedSegment:
    segment, numbers = trajectory.segments[number], trajectory.turn_numbers[number]
    shared = [passage for passage in passages_of(trajectory, number) if passage.shared]
    alerts = {turn: len(watched[turn].alerts) for turn in numbers if turn in watched}
    return OutlinedSegment(
        number + 1,
        depth,
        shared[-1].number + 1 if shared else None,
        0 if segment.prefix is None else segment.prefix.tokens,
        [
            Call(turn + 1, costs[turn], of_turn.seconds, _tools_s(trajectory, of_turn), alerts.get(turn, 0))
            for turn, of_turn in zip(numbers, segment.turns, strict=True)
        ],
    )


def _tools_s(trajectory: Trajectory, turn: Turn) -> float | None:
    known = trajectory.agent is None and turn.tool_calls
    return sum(call.seconds for call in turn.tool_calls) if known else None
