"""What ``./dev bench sandbox`` found: distributions, ratios turn by turn, targets, tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table

from benchmarks.distribution import Distribution

PEER = "docker run"
CYCLES = "life cycles/s"
GATEWAY = "gateway, Gbit/s"
STATEMENTS = (
    "bare process", "plain bwrap", PEER, "cold box", "cold watched", "life cycle", "pooled", "cell in session",
    "program in session",
)  # fmt: skip
"""The kinds that run the statement: only those can be compared."""
WANTED_ALIVE = 1000


def ratios(above: Sequence[float], below: Sequence[float]) -> Distribution:
    """Of what was measured in the same turns.  Raises ValueError when there are not as many of both."""
    return Distribution.of([one / other for one, other in zip(above, below, strict=True)])


@dataclass(frozen=True)
class Target:
    name: str
    wanted: str
    measured: str
    verdict: Literal["met", "missed", "not measured"]


def targets(
    milliseconds: Mapping[str, Distribution], ratio: Mapping[str, Distribution], rates: Mapping[str, Distribution],
    alive: Mapping[str, Any],
) -> list[Target]:  # fmt: skip
    """Medians count."""
    judged = [
        _at_most("cold start to first exec, ms", milliseconds["cold box"].median, 25),
        _at_most("pooled acquire + exec, ms", milliseconds["pooled"].median, 1),
        *(
            _at_least(name, ratio[name].median if name in ratio else None, 10)
            for name in (f"{PEER} / cold box", f"{PEER} / life cycle", f"{PEER} / pooled")
        ),
    ]
    all_of_them = alive["share_answered"] if alive["boxes"] >= WANTED_ALIVE else None
    return [
        *judged,
        _at_least(f"share of {WANTED_ALIVE:,} living boxes that answers", all_of_them, 1),
        _at_least("gateway, Gbit/s", rates[GATEWAY].median, 1),
    ]


def _at_most(name: str, value: float, limit: float) -> Target:
    return Target(name, f"<= {limit:g}", f"{value:.2f}", "met" if value <= limit else "missed")


def _at_least(name: str, value: float | None, limit: float) -> Target:
    if value is None:
        return Target(name, f">= {limit:g}", "", "not measured")
    # Cut, not rounded: 0.9996 is not all of them.
    return Target(name, f">= {limit:g}", f"{int(value * 1000) / 1000:g}", "met" if value >= limit else "missed")


def times_table(milliseconds: Mapping[str, Distribution], ratio: Mapping[str, Distribution]) -> Table:
    turns = next(iter(milliseconds.values())).n
    table = _table(f"milliseconds, {turns} turns", "kind", "median", "p10", "p90", "min", "max", f"{PEER} / this")
    for kind, spread in milliseconds.items():
        compared = ratio.get(f"{PEER} / {kind}")
        table.add_row(kind, *_numbers(spread), f"{compared.median:.1f}x" if compared else "")
    return table


def rates_table(rates: Mapping[str, Distribution], ratio: Mapping[str, Distribution]) -> Table:
    """The last column: our own kind over this one."""
    turns = next(iter(rates.values())).n
    table = _table(f"rates, {turns} turns", "kind", "median", "p10", "p90", "min", "max", "ours / this")
    for kind, spread in rates.items():
        compared = next((ratio[f"{own} / {kind}"] for own in (CYCLES, GATEWAY) if f"{own} / {kind}" in ratio), None)
        table.add_row(kind, *_numbers(spread), f"{compared.median:.2f}x" if compared else "")
    return table


def targets_table(judged: Sequence[Target]) -> Table:
    table = _table("targets (medians)", "what", "wanted", "measured", "")
    for one in judged:
        table.add_row(one.name, one.wanted, one.measured, one.verdict)
    return table


def _numbers(spread: Distribution) -> list[str]:
    return [f"{value:.2f}" for value in (spread.median, spread.p10, spread.p90, spread.min, spread.max)]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table
