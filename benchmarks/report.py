"""A comparison as a table for people and as JSON for machines; both hold the same numbers."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from benchmarks.measurement import PHASES, Comparison, Run, Spread, seconds_per_trajectory


def as_json(comparisons: Sequence[Comparison], *, machine: dict[str, Any], target: float) -> dict[str, Any]:
    return {
        "benchmark": "throughput",
        "peer": "trl",
        "target_ratio": target,
        "machine": machine,
        "settings": {comparison.setting: _setting_as_json(comparison) for comparison in comparisons},
    }


def _setting_as_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "pairs": len(comparison.ours),
        "ratio": asdict(Spread.of(comparison.ratios())) | {"of_pairs": comparison.ratios()},
        "phase_ratios": {phase: asdict(Spread.of(comparison.phase_ratios(phase))) for phase in PHASES},
        "palestra": _side_as_json(comparison.ours),
        "trl": _side_as_json(comparison.theirs),
    }


def _side_as_json(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "trajectories_per_s": asdict(_spread(runs, "trajectories_per_s")),
        "tokens_per_s": asdict(_spread(runs, "tokens_per_s")),
        "tokens_per_trajectory": asdict(_spread(runs, "tokens_per_trajectory")),
        "turns_per_trajectory": asdict(_spread(runs, "turns_per_trajectory")),
        "shares": {phase: asdict(Spread.of([run.shares()[phase] for run in runs])) for phase in runs[0].shares()},
        "versions": runs[0].versions,
        "threads": runs[0].threads,
        "runs": [asdict(run) for run in runs],
    }


def summary_table(comparisons: Sequence[Comparison]) -> Table:
    """Median (min to max) over the pairs."""
    table = Table(title="rollouts + update, Palestra and TRL's GRPOTrainer: median (min to max)")
    for name in ("setting", "", "trajectories/s", "sampled tokens/s", "tokens each", "turns each"):
        table.add_column(name, justify="left" if name in ("setting", "") else "right")
    for comparison in comparisons:
        for name, runs in (("Palestra", comparison.ours), ("TRL", comparison.theirs)):
            table.add_row(
                comparison.setting,
                name,
                str(_spread(runs, "trajectories_per_s")),
                str(_spread(runs, "tokens_per_s")),
                str(_spread(runs, "tokens_per_trajectory")),
                str(_spread(runs, "turns_per_trajectory")),
            )
        table.add_row(comparison.setting, "ratio", str(Spread.of(comparison.ratios())), end_section=True)
    return table


def phase_table(comparisons: Sequence[Comparison]) -> Table:
    """Where the time goes: milliseconds per trajectory and share of the whole, medians."""
    table = Table(title="where the time goes: ms per trajectory (share), medians; TRL / Palestra per pair")
    for name in ("setting", "phase", "Palestra", "TRL", "TRL / Palestra"):
        table.add_column(name, justify="left" if name in ("setting", "phase") else "right")
    for comparison in comparisons:
        for phase in PHASES:
            table.add_row(
                comparison.setting,
                phase,
                _cost(comparison.ours, phase),
                _cost(comparison.theirs, phase),
                str(Spread.of(comparison.phase_ratios(phase))),
                end_section=phase == PHASES[-1],
            )
    return table


def _cost(runs: Sequence[Run], phase: str) -> str:
    milliseconds = Spread.of([1000 * seconds_per_trajectory(run, phase) for run in runs]).median
    return f"{milliseconds:.2f} ({Spread.of([run.shares()[phase] for run in runs]).median:.0%})"


def _spread(runs: Sequence[Run], name: str) -> Spread:
    return Spread.of([getattr(run, name) for run in runs])
