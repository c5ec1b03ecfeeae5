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
    seconds: float | None
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
class Outline:
    segments: list[OutlinedSegment]
    """Each behind the one that it leaves."""
    total: CallCost

    @classmethod
    def of(cls, trajectory: Trajectory, watched: dict[int, Watched]) -> Self:
        costs = costs_of(trajectory)
        total = CallCost(
            *(sum(getattr(cost, name) for cost in costs.values()) for name in ("shared", "read", "sampled"))
        )
        segments = [_outlined(trajectory, number, depth, costs, watched) for number, depth in _in_depth(trajectory)]
        return cls(segments, total)


def costs_of(trajectory: Trajectory) -> dict[int, CallCost]:
    """By the number of the turn, from 0 on."""
    costs = {}
    for segment, numbers in zip(trajectory.segments, trajectory.turn_numbers, strict=True):
        before = 0 if segment.prefix is None else segment.prefix.tokens
        for number, turn in zip(numbers, segment.turns, strict=True):
            costs[number] = CallCost(before, len(turn.context_ids), len(turn.token_ids))
            before += turn.token_count
    return costs


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
            Call(turn + 1, costs[turn], _seconds(trajectory, of_turn), alerts.get(turn, 0))
            for turn, of_turn in zip(numbers, segment.turns, strict=True)
        ],
    )


def _seconds(trajectory: Trajectory, turn: Turn) -> float | None:
    known = trajectory.agent is None and turn.tool_calls
    return sum(call.seconds for call in turn.tool_calls) if known else None
