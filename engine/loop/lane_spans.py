"""What each lane did during a step, for the page that shows them side by side."""

import time
from collections import deque
from typing import Literal

from engine.spec.event import MOST_SPANS, LaneSpan, Phase

Lane = Literal["generation", "environment", "reward", "training", "weights"]

LANE_OF: dict[Phase, Lane] = {
    "sync-weights": "weights",
    "judge": "reward",
    "score": "training",
    "credit": "training",
    "update": "training",
}
"""The lane of each phase that is drawn; the wait for a batch is a gap."""


class SpanLog:
    """Keeps the latest spans until somebody takes them."""

    def __init__(self) -> None:
        self._spans: deque[LaneSpan] = deque(maxlen=MOST_SPANS)

    def add(self, lane: Lane, label: str, seconds: float) -> None:
        """A span of so many seconds, which ends now."""
        self._spans.append(LaneSpan(lane=lane, label=label, began_at=time.time() - seconds, seconds=seconds))

    def phase_ended(self, phase: Phase, seconds: float) -> None:
        """A phase that is drawn; others are not."""
        if (lane := LANE_OF.get(phase)) is not None:
            self.add(lane, phase, seconds)

    def taken(self) -> list[LaneSpan]:
        """Those since the last call, in the order in which they began."""
        spans = sorted(self._spans, key=lambda span: span.began_at)
        self._spans.clear()
        return spans
