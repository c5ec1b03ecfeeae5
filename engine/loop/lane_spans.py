"""What each lane did during a step, for the page that shows them side by side.

An event holds so many spans and no more.  Of a lane with more, most often turns, the longest stay as they are and the
others are joined, so that whoever adds up a lane's busy time still counts all of them.
"""

import heapq
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from typing import Literal

from engine.rollout.worker import UnkeptTurn
from engine.spec.event import MOST_SPANS, LaneSpan, Phase
from engine.spec.trajectory import Trajectory

Lane = Literal["rollouts", "generation", "environment", "reward", "training", "weights", "devices"]

LANE_OF: dict[Phase, Lane] = {
    "sync-weights": "weights",
    "judge": "reward",
    "score": "training",
    "credit": "training",
    "update": "training",
}
"""The lane of each phase that is drawn; the wait for a batch is a gap."""
WHAT_IS_JOINED: dict[Lane, str] = {
    "rollouts": "groups",
    "generation": "turns",
    "environment": "turns",
    "reward": "groups",
    "devices": "spells",
}
"""What a span is in lanes that may have many."""
MOST_KEPT = 4 * MOST_SPANS
"""Spans of a lane that are kept apart until somebody takes them; further ones are joined before."""


class SpanLog:
    """Keeps spans until somebody takes them."""

    def __init__(self) -> None:
        self._spans: defaultdict[Lane, list[LaneSpan]] = defaultdict(list)

    def add(self, lane: Lane, label: str, seconds: float) -> None:
        """A span of so many seconds, which ends now."""
        self._keep(LaneSpan(lane=lane, label=label, began_at=time.time() - seconds, seconds=seconds))

    def add_turns(self, rollouts: Iterable[Trajectory]) -> None:
        """Two spans for each turn: while it was generated, and while the environment answered its calls."""
        for rollout in rollouts:
            for turn in rollout.turns:
                self._add_turn("generation", rollout.id, turn.began_at, turn.seconds or 0.0)
                begun = (call.began_at for call in turn.tool_calls if call.began_at is not None)
                self._add_turn("environment", rollout.id, next(begun, None), sum(it.seconds for it in turn.tool_calls))

    def add_unkept(self, turns: Iterable[UnkeptTurn]) -> None:
        """They took the generator's time as well."""
        for turn in turns:
            self._add_turn("generation", f"{turn.rollout}, not used", turn.began_at, turn.seconds)

    def _add_turn(self, lane: Lane, label: str, began_at: float | None, seconds: float) -> None:
        if began_at is not None and 0 < seconds < inf:  # an environment of this process may write anything
            self._keep(LaneSpan(lane=lane, label=label, began_at=began_at, seconds=seconds))

    def _keep(self, span: LaneSpan) -> None:
        spans = self._spans[span.lane]
        spans.append(span)
        if len(spans) > MOST_KEPT:
            self._spans[span.lane] = fitted(spans, MOST_SPANS)

    def phase_ended(self, phase: Phase, seconds: float) -> None:
        """A phase that is drawn; others are not."""
        if (lane := LANE_OF.get(phase)) is not None:
            self.add(lane, phase, seconds)

    def taken(self) -> list[LaneSpan]:
        """Those since the last call, in the order in which they began.

        Lanes share the room of an event; what one does not need, those with more have.
        """
        found: list[LaneSpan] = []
        by_number = sorted(self._spans.values(), key=len)
        for done, spans in enumerate(by_number):
            found += fitted(spans, (MOST_SPANS - len(found)) // (len(by_number) - done))
        self._spans.clear()
        return sorted(found, key=lambda span: span.began_at)


def fitted(spans: Sequence[LaneSpan], room: int) -> list[LaneSpan]:
    """At most ``room`` (2 at least) spans of one lane for ``spans``: the longest half, and the others joined.

    What is joined covers the time in which any of them was under way and, where the room does not suffice for each such
    time, the shortest gaps between them.
    """
    if len(spans) <= room:
        return [*spans]
    single = [span for span in spans if span.joined == 1]
    longest = heapq.nlargest(room // 2, single, key=lambda span: span.seconds)
    kept = {id(span) for span in longest}
    others = sorted((span for span in spans if id(span) not in kept), key=lambda span: span.began_at)
    return [*longest, *_joined(others, room - len(longest))]


def _joined(spans: Sequence[LaneSpan], room: int) -> list[LaneSpan]:
    """``spans`` are in order of time."""
    runs: list[list[LaneSpan]] = []
    gaps: list[float] = []
    """Before each run but the first."""
    reached = float("-inf")
    for span in spans:
        if span.began_at > reached:
            gaps.append(span.began_at - reached)
            runs.append([])
        runs[-1].append(span)
        reached = max(reached, span.began_at + span.seconds)
    widest = set(heapq.nlargest(room, range(len(runs)), key=gaps.__getitem__))
    joined: list[list[LaneSpan]] = []
    for number, run in enumerate(runs):
        if number in widest:
            joined.append([])
        joined[-1] += run
    return [_as_one(run) for run in joined]


def _as_one(spans: Sequence[LaneSpan]) -> LaneSpan:
    if len(spans) == 1:
        return spans[0]
    began_at = min(span.began_at for span in spans)
    ended_at = max(span.began_at + span.seconds for span in spans)
    number = sum(span.joined for span in spans)
    return LaneSpan(
        lane=spans[0].lane,
        label=f"{number} {WHAT_IS_JOINED.get(spans[0].lane, 'spans')}",
        began_at=began_at,
        seconds=ended_at - began_at,
        joined=number,
        work_seconds=sum(span.work for span in spans),
    )
