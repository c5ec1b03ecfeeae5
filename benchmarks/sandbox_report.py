"""What ``./dev bench sandbox`` found: distributions, ratios turn by turn, headlines, tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.distribution import Distribution
from benchmarks.headline import Headline, at_least, at_most

PEER = "docker run"
CYCLES = "life cycles/s"
GATEWAY = "gateway, Gbit/s"
STATEMENTS = (
    "bare process", "plain bwrap", PEER, "cold sandbox", "cold watched", "life cycle", "pooled", "pooled, reset",
    "cell in session", "program in session",
)  # fmt: skip
"""The kinds that run the statement: only those can be compared."""
OBSERVED = ("cell", "exec", "program", "20 files written")
"""What is measured in an observed sandbox and in one that is only watched, in the same turn."""
WANTED_ALIVE = 1000


def ratios(above: Sequence[float], below: Sequence[float]) -> Distribution:
    """The ratios of what was measured in the same turns.  Raises ValueError when there are not as many of both."""
    return Distribution.of([numerator / denominator for numerator, denominator in zip(above, below, strict=True)])


def headlines(
    milliseconds: Mapping[str, Distribution], ratio: Mapping[str, Distribution], rates: Mapping[str, Distribution],
    alive: Mapping[str, Any],
) -> list[Headline]:  # fmt: skip
    """Medians count."""
    judged = [
        at_most("cold start to first exec, ms", milliseconds["cold sandbox"], 25),
        at_most("pooled acquire + exec, ms", milliseconds["pooled"], 1),
        *(
            at_least(name, ratio.get(name), 10)
            for name in (f"{PEER} / cold sandbox", f"{PEER} / life cycle", f"{PEER} / pooled")
        ),
    ]
    for what in OBSERVED[:3]:
        name = f"observed {what} / watched {what}"
        judged.append(at_most(name, ratio.get(name), 1.05))
    all_of_them = alive["share_answered"] if alive["sandboxes"] >= WANTED_ALIVE else None
    return [
        *judged,
        at_least(f"share of {WANTED_ALIVE:,} living sandboxes that answers", all_of_them, 1),
        at_least("gateway, Gbit/s", rates[GATEWAY], 1),
    ]


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


def _numbers(spread: Distribution) -> list[str]:
    return [f"{value:.2f}" for value in (spread.median, spread.p10, spread.p90, spread.min, spread.max)]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    return table
