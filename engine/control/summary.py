"""A finished run in a few numbers: ``finished.summary``, and the file that ``--json`` writes."""

from typing import Any

from engine.control.state import RunState

MEASURES = {
    "success_sampled": "eval/success_sampled",
    "success_greedy": "eval/success_greedy",
    "tool_error_rate": "eval/tool_error_rate",
}


def summary_of(state: RunState) -> dict[str, Any]:
    """``events_emitted`` is added by the journal, which alone knows it.

    ``tokens_per_s`` are sampled training tokens per second of the collect phases.  A cancelled run
    has ``before_rl`` and ``after`` only as far as they were measured.
    """
    collecting = state.seconds.get("collect", 0.0)
    return {
        **{name: _before_and_after(state, key) for name, key in MEASURES.items()},
        "steps": state.finished_steps,
        "trajectories_stored": state.trajectories,
        "seconds": {phase: round(seconds, 3) for phase, seconds in state.seconds.items()},
        "tokens_per_s": round(state.sampled_tokens / collecting, 1) if collecting else 0.0,
        "peak_rss_mib": round(state.peak_rss_mib, 1),
    }


def _before_and_after(state: RunState, key: str) -> dict[str, float]:
    found = {
        "before_rl": state.evaluations.get(0, {}).get(key),
        "after": state.evaluations.get(state.spec.schedule.steps, {}).get(key),
    }
    return {name: value for name, value in found.items() if value is not None}
