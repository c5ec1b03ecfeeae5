"""A comparison as a table for people and as JSON for machines; both hold the same numbers."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from benchmarks.distribution import Distribution
from benchmarks.headline import Headline, at_least
from benchmarks.measurement import PHASES, Comparison, Run, seconds_per_trajectory
from benchmarks.workload import TARGETS


def headlines(comparisons: Sequence[Comparison]) -> list[Headline]:
    return [
        at_least(
            f"{comparison.setting}: trajectories/s over TRL's",
            Distribution.of(comparison.ratios()),
            TARGETS[comparison.setting],
        )
        for comparison in comparisons
    ]


def as_json(comparisons: Sequence[Comparison], *, machine: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": "throughput",
        "peer": "trl",
        "target_ratios": TARGETS,
        "machine": machine,
        "settings": {comparison.setting: _setting_as_json(comparison) for comparison in comparisons},
    }


def _setting_as_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "pairs": len(comparison.ours),
        "ratio": asdict(Distribution.of(comparison.ratios())) | {"of_pairs": comparison.ratios()},
        "cost_ratios": {part: asdict(Distribution.of(comparison.cost_ratios(part))) for part in (*PHASES, "cpu")},
        "others_share": comparison.others_share(),
        "pairs_set_aside": len(comparison.set_aside),
        "palestra": _side_as_json(comparison.ours),
        "trl": _side_as_json(comparison.theirs),
    }


def _side_as_json(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "trajectories_per_s": asdict(_distribution(runs, "trajectories_per_s")),
        "tokens_per_s": asdict(_distribution(runs, "tokens_per_s")),
        "tokens_per_trajectory": asdict(_distribution(runs, "tokens_per_trajectory")),
        "turns_per_trajectory": asdict(_distribution(runs, "turns_per_trajectory")),
        "shares": {phase: asdict(Distribution.of([run.shares()[phase] for run in runs])) for phase in runs[0].shares()},
        "versions": runs[0].versions,
        "threads": runs[0].threads,
        "runs": [asdict(run) for run in runs],
    }


def summary_table(comparisons: Sequence[Comparison]) -> Table:
    """Median (min to max) over the pairs; lengths are medians."""
    return _table(
        "rollouts + update: median (min to max) of the paired runs",
        ["setting", "", "trajectories/s", "sampled tokens/s", "tokens each", "turns each"],
        [row for comparison in comparisons for row in _summary_rows(comparison)],
    )


def _summary_rows(comparison: Comparison) -> list[list[str]]:
    sides = [("Palestra", comparison.ours), ("TRL", comparison.theirs)]
    rows = [
        [
            comparison.setting,
            name,
            str(_distribution(runs, "trajectories_per_s")),
            str(_distribution(runs, "tokens_per_s")),
            f"{_distribution(runs, 'tokens_per_trajectory').median:.1f}",
            f"{_distribution(runs, 'turns_per_trajectory').median:.2f}",
        ]
        for name, runs in sides
    ]
    return [*rows, [comparison.setting, "ratio", str(Distribution.of(comparison.ratios()))]]


def cost_table(comparisons: Sequence[Comparison]) -> Table:
    """Return where the time goes: milliseconds per trajectory and share of the whole, medians."""
    return _table(
        "where the time goes: ms per trajectory (share of the step), medians",
        ["setting", "part", "Palestra", "TRL", "TRL / Palestra, per pair"],
        [row for comparison in comparisons for row in _cost_rows(comparison)],
    )


def _cost_rows(comparison: Comparison) -> list[list[str]]:
    phases = [
        [
            comparison.setting,
            phase,
            f"{_milliseconds(comparison.ours, phase)} ({_share(comparison.ours, phase)})",
            f"{_milliseconds(comparison.theirs, phase)} ({_share(comparison.theirs, phase)})",
            str(Distribution.of(comparison.cost_ratios(phase))),
        ]
        for phase in PHASES
    ]
    processor = [_milliseconds(comparison.ours, "cpu"), _milliseconds(comparison.theirs, "cpu")]
    return [*phases, [comparison.setting, "processor", *processor, str(Distribution.of(comparison.cost_ratios("cpu")))]]


def _milliseconds(runs: Sequence[Run], part: str) -> str:
    return f"{Distribution.of([1000 * seconds_per_trajectory(run, part) for run in runs]).median:.2f}"


def _share(runs: Sequence[Run], phase: str) -> str:
    return f"{Distribution.of([run.shares()[phase] for run in runs]).median:.0%}"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
    for row, below in zip(rows, [*rows[1:], None], strict=True):
        table.add_row(*row, end_section=below is None or below[0] != row[0])
    return table


def _distribution(runs: Sequence[Run], name: str) -> Distribution:
    return Distribution.of([getattr(run, name) for run in runs])
