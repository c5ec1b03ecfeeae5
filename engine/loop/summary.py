"""A finished run in a few numbers: ``finished.summary``, and the file that ``--json`` writes."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from engine.cluster.workers import Replacements
from engine.loop.state import RunState
from engine.spec.recipe import Recipe

MEASURES = {
    "success_sampled": "eval/success_sampled",
    "success_greedy": "eval/success_greedy",
    "tool_error_rate": "eval/tool_error_rate",
}
WITH_PURIFICATION = {"success_purified": "eval/success_purified"}
"""They are of runs whose recipe evaluates with it."""
NONE = Replacements()
STEP_PHASES = ("sync-weights", "collect", "score", "judge", "credit", "update")


def summary_of(state: RunState, recipe: Recipe, *, rl_steps: int, replacements: Replacements = NONE) -> dict[str, Any]:
    """``events_emitted`` is added by the event writer, which alone knows it.

    ``tokens_per_s`` are sampled training tokens per second of the collect phases, or of all phases of the steps where
    groups are played beside them.  A cancelled run has ``before_rl`` and ``after`` only as far as they were measured;
    one without RL has no ``before_rl``.  ``evaluation`` is the table of the last evaluation
    (engine/rollout/evaluation_report.py), where there is one.  ``replaced`` and ``moved`` say how often each member was
    made anew in the last attempt, and how often on another node, where any was.
    """
    purification = recipe.purification
    purified = WITH_PURIFICATION if purification is not None and purification.in_evaluation else {}
    phases = STEP_PHASES if state.spec.schedule.overlaps else ("collect",)
    collecting = sum(state.seconds.get(phase, 0.0) for phase in phases)
    return {
        **{name: _before_and_after(state, key, last=rl_steps) for name, key in (MEASURES | purified).items()},
        **({} if state.evaluation_report is None else {"evaluation": state.evaluation_report}),
        "steps": state.finished_steps,
        "trajectories_stored": state.trajectories,
        "seconds": {phase: round(seconds, 3) for phase, seconds in state.seconds.items()},
        "tokens_per_s": round(state.sampled_tokens / collecting, 1) if collecting else 0.0,
        "peak_rss_mib": round(state.peak_rss_mib, 1),
        **{name: dict(counts) for name, counts in _counts(replacements) if counts},
    }


def _counts(replacements: Replacements) -> Iterator[tuple[str, Counter[str]]]:
    yield "replaced", replacements.replaced
    yield "moved", replacements.moved


def _before_and_after(state: RunState, key: str, *, last: int) -> dict[str, float]:
    found = {
        "before_rl": state.evaluations.get(0, {}).get(key) if last > 0 else None,
        "after": state.evaluations.get(last, {}).get(key),
    }
    return {name: value for name, value in found.items() if value is not None}
