"""What each lane did during a step, for the page that shows them side by side."""

import heapq
import time
from collections import deque
from collections.abc import Iterable
from typing import Literal

from engine.spec.event import MOST_SPANS, LaneSpan, Phase
from engine.spec.trajectory import Trajectory

Lane = Literal["generation", "environment", "reward", "training", "weights", "devices"]

LANE_OF: dict[Phase, Lane] = {
    "sync-weights": "weights",
    "judge": "reward",
    "score": "training",
    "credit": "training",
    "update": "training",
}
"""The lane of each phase that is drawn; the wait for a batch is a gap."""


class SpanLog:
    """Keeps the latest spans until somebody takes them, and of the environments' as many of the longest as there is
    room for beside them."""

    def __init__(self) -> None:
        self._spans: deque[LaneSpan] = deque(maxlen=MOST_SPANS)
        self._environment: list[LaneSpan] = []

    def add(self, lane: Lane, label: str, seconds: float) -> None:
        """A span of so many seconds, which ends now."""
        self._spans.append(LaneSpan(lane=lane, label=label, began_at=time.time() - seconds, seconds=seconds))

    def add_tools(self, rollouts: Iterable[Trajectory]) -> None:
        """One span for each turn whose calls an environment has answered."""
        for rollout in rollouts:
            for turn in rollout.turns:
                begun = [call.began_at for call in turn.tool_calls if call.began_at is not None]
                seconds = sum(call.seconds for call in turn.tool_calls)
                if begun and seconds:
                    span = LaneSpan(lane="environment", label=rollout.id, began_at=begun[0], seconds=seconds)
                    self._environment.append(span)
        self._environment = heapq.nlargest(MOST_SPANS, self._environment, key=lambda span: span.seconds)

    def phase_ended(self, phase: Phase, seconds: float) -> None:
        """A phase that is drawn; others are not."""
        if (lane := LANE_OF.get(phase)) is not None:
            self.add(lane, phase, seconds)

    def taken(self) -> list[LaneSpan]:
        """Those since the last call, in the order in which they began."""
        longest = self._environment[: MOST_SPANS - len(self._spans)]
        spans = sorted([*self._spans, *longest], key=lambda span: span.began_at)
        self._spans.clear()
        self._environment.clear()
        return spans
