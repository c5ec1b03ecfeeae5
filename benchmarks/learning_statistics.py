"""What the curves of paired runs allow to say.  Pairs share seed and cold start."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import nan, sqrt
from statistics import fmean, stdev
from typing import Any

from benchmarks.distribution import Distribution
from benchmarks.headline import Headline, at_least, figure
from benchmarks.learning_runs import RunResult

Curve = dict[int, float]


@dataclass(frozen=True)
class Spread:
    """Mean and standard error over seeds (nan with fewer than two)."""

    mean: float
    error: float
    values: tuple[float, ...]


def spread(values: Sequence[float]) -> Spread:
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else nan
    return Spread(fmean(values), error, tuple(values))


def area(curve: Curve) -> float:
    """Mean height of the curve over its steps (trapezoids), so that curves of equal steps compare."""
    steps = sorted(curve)
    if len(steps) == 1:
        return curve[steps[0]]
    parts = [(curve[a] + curve[b]) / 2 * (b - a) for a, b in zip(steps, steps[1:], strict=False)]
    return sum(parts) / (steps[-1] - steps[0])


def first_step_at(curve: Curve, height: float) -> int | None:
    """The first step at which the curve is at least as high; None if it never is."""
    return next((step for step in sorted(curve) if curve[step] >= height), None)


MEASURES = {
    "tool_error_rate": "train/tool_error_rate",
    "first_attempt_error_rate": "train/first_attempt_error_rate",
    "grad_norm": "train/grad_norm",
    "step_seconds": "perf/step_seconds",
}
"""Name -> the training metric whose mean over all steps it is; of a metric that a run lacks, nothing is told."""

HELD_OUT = {
    "final_greedy": "eval/success_greedy",
    "heldout_tool_error_rate": "eval/tool_error_rate",
    "turns": "eval/context/turns",
    "sampled_tokens": "eval/context/sampled_tokens",
    "read_tokens": "eval/context/read_tokens",
    "opening_tokens": "eval/context/opening_tokens",
    "turn_tokens": "eval/context/turn_tokens",
    "longest_tokens": "eval/context/longest_tokens",
    "segments": "eval/context/segments",
    "thoughts": "eval/context/thoughts",
    "notes": "eval/context/notes",
    "left_turns": "eval/context/left_turns",
}
"""Name -> the metric of the last evaluation that it is, of sampled episodes but for ``final_greedy``."""

COSTS = {
    "sampled_tokens": "tokens sampled an episode",
    "read_tokens": "tokens read an episode, each turn anew",
    "turn_tokens": "tokens before a turn",
    "longest_tokens": "tokens of an episode's longest context",
}


def summary(metric: str, outcomes: Sequence[RunResult]) -> dict[str, Any]:
    """Per arm: height before RL and at the end, area, steps to 90 % of the baseline's best, the means of MEASURES and
    what HELD_OUT says of the last evaluation; per later arm its paired differences to the first.  Steps to the
    threshold count as one more than the last where never reached, and how many seeds reached it is told beside."""
    arms = list(dict.fromkeys(outcome.arm for outcome in outcomes))
    by_arm = {arm: {outcome.seed: outcome for outcome in outcomes if outcome.arm == arm} for arm in arms}
    seeds = sorted(by_arm[arms[0]])
    rows = {arm: [_row(metric, by_arm[arm][seed], by_arm[arms[0]][seed]) for seed in seeds] for arm in arms}
    report: dict[str, Any] = {"metric": metric, "seeds": seeds, "baseline": arms[0], "arms": {}, "differences": {}}
    for arm in arms:
        names = [name for name in rows[arm][0] if all(name in row for row in rows[arm])]
        report["arms"][arm] = {name: asdict(spread([row[name] for row in rows[arm]])) for name in names}
    for arm in arms[1:]:
        names = [name for name in report["arms"][arm] if name in report["arms"][arms[0]]]
        report["differences"][arm] = {
            name: asdict(spread([a[name] - b[name] for a, b in zip(rows[arm], rows[arms[0]], strict=True)]))
            for name in names
        }
    return report


def headlines(report: dict[str, Any]) -> list[Headline]:
    """Final height of every arm; of a later one its paired difference to the first, which ought to be above 0.  Where
    the recipes have contexts: what an episode costs in tokens, and how long its contexts are."""
    arms = [
        figure(f"{arm}: {report['metric']} at the end", _of(values["final"])) for arm, values in report["arms"].items()
    ]
    differences = [
        at_least(f"{arm} over {report['baseline']}: {report['metric']} at the end", _of(values["final"]), 0.0)
        for arm, values in report["differences"].items()
    ]
    contexts = [
        figure(f"{arm}: {what}", _of(values[name]))
        for arm, values in report["arms"].items()
        for name, what in COSTS.items()
        if name in values
    ]
    return arms + differences + contexts


def _of(values: dict[str, Any]) -> Distribution:
    return Distribution.of(values["values"])


def _row(metric: str, outcome: RunResult, baseline: RunResult) -> dict[str, float]:
    curve, reference = outcome.curves[metric], baseline.curves[metric]
    last = max(curve)
    reached = first_step_at(curve, 0.9 * max(reference.values()))
    row = {
        "first": curve[min(curve)],
        "final": curve[last],
        "area": area(curve),
        "steps_to_90": float(last + 1 if reached is None else reached),
        "reached_90": float(reached is not None),
    }
    for name, key in MEASURES.items():
        if key in outcome.curves:
            row[name] = fmean(outcome.curves[key].values())
        elif name == "first_attempt_error_rate" and "train/tool_error_rate" in outcome.curves:
            row[name] = fmean(outcome.curves["train/tool_error_rate"].values())
    for name, key in HELD_OUT.items():
        if key in outcome.curves:
            row[name] = outcome.curves[key][max(outcome.curves[key])]
    return row


def band(outcomes: Sequence[RunResult], key: str) -> tuple[list[int], list[float], list[float]]:
    """Steps, means and half-widths of the 95 % band (1.96 standard errors) over the seeds that have the step."""
    steps = sorted({step for outcome in outcomes for step in outcome.curves.get(key, {})})
    at = [[outcome.curves[key][step] for outcome in outcomes if step in outcome.curves.get(key, {})] for step in steps]
    spreads = [spread(values) for values in at]
    return (
        steps,
        [estimate.mean for estimate in spreads],
        [0.0 if estimate.error != estimate.error else 1.96 * estimate.error for estimate in spreads],
    )
