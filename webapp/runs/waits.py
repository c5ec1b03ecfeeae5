"""What everyone waits for, in words: which side of a run is the slower one, and what it expected of its steps.

The words are made here alone, from the newest values and spans, and are fetched again when a step is over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webapp.pages.display import duration
from webapp.runs.lanes import LaneUse, lanes_of, use_of
from webapp.runs.models import Run
from webapp.runs.series import series_of

STEPS = 10
"""The newest steps that the words speak of."""
HARDLY = 0.05
"""A share of the time that is not worth a remedy."""

Values = Mapping[str, Mapping[int, float]]
"""Metric key -> step -> value."""

_KEYS = (
    "perf/step_seconds",
    "perf/collect_seconds",
    "perf/update_seconds",
    "perf/eta_seconds",
    "buffer/trainer_waited_seconds",
    "buffer/generation_blocked_seconds",
    "buffer/ready",
    "buffer/running",
    "buffer/waiting",
)


@dataclass(frozen=True)
class Waits:
    sentences: list[str]
    uses: list[LaneUse]
    overlaps: bool
    """Generation and training run beside each other, so there are lanes or will be."""


def waits_of(run: Run) -> Waits:
    uses = use_of(lanes_of(run.id, steps=STEPS))
    overlaps = overlaps_in(run.spec) or bool(uses)
    values = _newest_values(run)
    return Waits(sentences_of(values, total_steps=run.total_steps, overlaps=overlaps), uses, overlaps)


def overlaps_in(spec: Mapping[str, Any]) -> bool:
    """Whether a run with this spec reports lanes."""
    return bool(spec["schedule"].get("async_ratio"))


def _newest_values(run: Run) -> Values:
    first = max(0, run.step - 4 * STEPS)
    found = series_of(run.id, keys=_KEYS, first_step=first)
    return {series.key: {point.last_step: point.last for point in series.points} for series in found}


def sentences_of(values: Values, *, total_steps: int, overlaps: bool) -> list[str]:
    """None where no step is over yet."""
    seconds = values.get("perf/step_seconds", {})
    steps = sorted(seconds)[-STEPS:]
    taken_s = sum(seconds[step] for step in steps)
    if not taken_s:
        return []
    speaking = _overlapping if overlaps else _taking_turns
    return [*speaking(values, steps, taken_s), *_estimate(values, total_steps)]


def _overlapping(values: Values, steps: Sequence[int], taken_s: float) -> list[str]:
    waited_s = _sum(values, "buffer/trainer_waited_seconds", steps)
    blocked_s = _sum(values, "buffer/generation_blocked_seconds", steps)
    over = _over(steps)
    return [
        f"{over} took {duration(taken_s)}. Training waited {_part(waited_s, taken_s)} of it for rollouts; generation"
        f" stood still {_part(blocked_s, taken_s)} because it may not run further ahead.",
        _remedy(waited_s / taken_s, blocked_s / taken_s),
        *_occupancy(values, steps[-1]),
    ]


def _remedy(waited: float, blocked: float) -> str:
    if max(waited, blocked) < HARDLY:
        return "Neither side waits much for the other."
    if waited >= blocked:
        return (
            "Rollouts are the slower side. What helps: more rollout workers or sandboxes, redundant members or groups,"
            " a larger schedule.async_ratio where a few slow rollouts hold up their step."
        )
    return (
        "Training is the slower side. What helps: more trainer ranks, or fewer rollouts in play;"
        " a larger schedule.async_ratio only makes rollouts older."
    )


def _occupancy(values: Values, step: int) -> list[str]:
    counts = [values.get(f"buffer/{name}", {}).get(step) for name in ("ready", "running", "waiting")]
    if any(count is None for count in counts):
        return []
    ready, running, waiting = (int(count or 0) for count in counts)
    return [f"When step {step} took its batch, {ready} groups were ready, {running} in play and {waiting} planned."]


def _taking_turns(values: Values, steps: Sequence[int], taken_s: float) -> list[str]:
    # With redundancy, groups are played beside updates too, and what is collected began before the step.
    waited = "buffer/trainer_waited_seconds"
    collect_s = _sum(values, waited if waited in values else "perf/collect_seconds", steps)
    update_s = _sum(values, "perf/update_seconds", steps)
    return [
        f"{_over(steps)} took {duration(taken_s)}. Training waited {_part(collect_s, taken_s)} of it for rollouts;"
        f" generation stood still {_part(update_s, taken_s)} during updates.",
    ]


def _estimate(values: Values, total_steps: int) -> list[str]:
    """What was expected halfway of the steps that are in sight, for those that came since, and what they took."""
    seconds, left = values.get("perf/step_seconds", {}), values.get("perf/eta_seconds", {})
    known = sorted(step for step in left if step < total_steps)
    last = max(seconds)
    begin = next((step for step in known if step >= (known[0] + last) // 2), None) if known else None
    if begin is None or begin >= last:
        return []
    expected_s = left[begin] / (total_steps - begin) * (last - begin)
    came_s = sum(value for step, value in seconds.items() if step > begin)
    return [
        f"After step {begin} the run expected {duration(expected_s)} for"
        f" {_counted(last - begin)}; {'it' if last - begin == 1 else 'they'} took {duration(came_s)}."
    ]


def _counted(steps: int) -> str:
    return "the next step" if steps == 1 else f"the next {steps} steps"


def _over(steps: Sequence[int]) -> str:
    return f"Step {steps[0]}" if len(steps) == 1 else f"The last {len(steps)} steps"


def _part(seconds: float, of_s: float) -> str:
    return f"{duration(seconds) if seconds else '0 s'} ({100 * seconds / of_s:.0f}%)"


def _sum(values: Values, key: str, steps: Sequence[int]) -> float:
    return sum(values.get(key, {}).get(step, 0.0) for step in steps)
