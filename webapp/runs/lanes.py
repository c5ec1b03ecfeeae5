"""Who was at work beside whom, step by step, as the engine's ``lanes`` events tell it.

There is no table of spans: the log holds them, each step's once per attempt, and an index finds them.  What an attempt
said of steps that a later one does again is not shown.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connection

from engine.spec.event import LaneSpan

LANES: dict[str, tuple[str, str]] = {
    "rollouts": (
        "Rollouts",
        "Groups are played: one span for each, from its start until all of it is back, its tools included.",
    ),
    "generation": (
        "Generation",
        "The policy writes: one span for each turn, from its request until its last token, its wait for a place in the"
        " generator included.",
    ),
    "environment": (
        "Environment",
        "Tools run and environments take their steps, while the policy waits for what comes of them.",
    ),
    "reward": ("Reward", "What an episode came to is computed, in the environment or by a judge."),
    "training": ("Training", "Credit is assigned, and the weights are updated."),
    "weights": ("Weights", "New weights go from the learner to the generator."),
    "devices": (
        "Devices",
        "Who has the devices that generator and trainer share: rollouts, or training (schedule.multiplexing).",
    ),
}
"""Lane -> its name, and what happens in it; in the order in which the page shows them."""

STEPS_AT_ONCE = 2
"""Steps that the page draws beside each other."""
MOST_STEPS = 50
"""Steps that one answer holds: some 2.5 MiB."""


@dataclass(frozen=True, slots=True)
class StepLanes:
    """What was reported with one step, in order of time."""

    step: int
    spans: list[dict[str, Any]]
    """Each one an ``engine.spec.event.LaneSpan``."""


_LANES = """
WITH restarts AS (SELECT seq, step FROM runs_event WHERE run_id = %(run)s AND kind = 'started')
SELECT DISTINCT ON (step) step, body->>'spans' FROM runs_event event
WHERE run_id = %(run)s AND kind = 'lanes' AND step <= %(last)s
      AND NOT EXISTS (SELECT FROM restarts WHERE restarts.seq > event.seq AND restarts.step < event.step)
ORDER BY step DESC, seq DESC LIMIT %(steps)s
"""


def lanes_of(run_id: UUID, *, last_step: int = 2**31 - 1, steps: int = STEPS_AT_ONCE) -> list[StepLanes]:
    """The newest ``steps`` steps that are not beyond ``last_step``, in their order."""
    with connection.cursor() as cursor:
        cursor.execute(_LANES, {"run": run_id, "last": last_step, "steps": min(steps, MOST_STEPS)})
        found = [StepLanes(step, _in_order(spans)) for step, spans in cursor.fetchall()]
    return found[::-1]


def _in_order(spans: str) -> list[dict[str, Any]]:
    return sorted(json.loads(spans), key=lambda span: span["began_at"])


@dataclass(frozen=True, slots=True)
class LaneUse:
    """How busy a lane was in the time that some steps' spans cover."""

    lane: str
    busy_s: float
    """Time in which at least one span was under way."""
    share: float
    """The share of the time from the first span of any lane to the end of the last."""
    at_once: float
    """Spans that were under way at once, each joined one for itself, on average while the lane was busy."""
    longest: LaneSpan

    @property
    def name(self) -> str:
        return LANES[self.lane][0]

    @property
    def idle(self) -> float:
        return 1 - self.share


def use_of(steps: Sequence[StepLanes]) -> list[LaneUse]:
    """One for each lane that has spans, in the order of ``LANES``.

    Of ``devices`` there is none: they always belong to somebody, who need not be busy.
    """
    reported = [LaneSpan.model_validate(span) for step in steps for span in step.spans]
    spans = [span for span in reported if span.lane != "devices"]
    if not spans:
        return []
    covered_s = max(span.began_at + span.seconds for span in spans) - min(span.began_at for span in spans)
    by_lane = {lane: [span for span in spans if span.lane == lane] for lane in LANES}
    return [_use(lane, its_spans, covered_s) for lane, its_spans in by_lane.items() if its_spans]


def _use(lane: str, spans: Sequence[LaneSpan], covered_s: float) -> LaneUse:
    busy_s = covered_seconds([(span.began_at, span.began_at + span.seconds) for span in spans])
    worked_s = sum(span.work for span in spans)
    return LaneUse(
        lane,
        busy_s=busy_s,
        share=busy_s / covered_s if covered_s else 0.0,
        at_once=worked_s / busy_s if busy_s else 0.0,
        longest=max(spans, key=lambda span: (span.joined == 1, span.seconds)),
    )


def covered_seconds(intervals: Sequence[tuple[float, float]]) -> float:
    """The length of the union of ``(begin, end)``: what two of them cover both counts once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
