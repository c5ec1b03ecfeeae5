"""What a benchmark says first: each figure that matters with its spread, its target, and whether it was met."""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.distribution import Distribution


@dataclass(frozen=True)
class Headline:
    what: str
    value: float | None
    """The median where there are several measurements; None: it was not measured."""
    spread: tuple[float, float] | None
    """Lowest and highest of several measurements."""
    target: str | None
    met: bool | None
    """Return None without a target or a value."""


Measured = Distribution | float | None


def figure(what: str, measured: Measured) -> Headline:
    """A figure that no target is set for."""
    value, spread = _value(measured)
    return Headline(what, value, spread, None, None)


def at_most(what: str, measured: Measured, limit: float) -> Headline:
    return _judged(what, measured, f"<= {limit:g}", lambda value: value <= limit)


def at_least(what: str, measured: Measured, limit: float) -> Headline:
    return _judged(what, measured, f">= {limit:g}", lambda value: value >= limit)


def _judged(what: str, measured: Measured, target: str, holds: Callable[[float], bool]) -> Headline:
    value, spread = _value(measured)
    return Headline(what, value, spread, target, None if value is None else holds(value))


def _value(measured: Measured) -> tuple[float | None, tuple[float, float] | None]:
    if isinstance(measured, Distribution):
        return measured.median, (measured.min, measured.max)
    return measured, None


def report_file(text: str) -> Path:
    """The type of an option ``--json``: a file that cannot be written is refused before hours are measured."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written; name a file in a folder of yours")
    return path


def write_report(path: Path, headlines: Sequence[Headline], document: dict[str, Any]) -> None:
    """The JSON file of a benchmark: ``headline`` first, then everything that it took."""
    report = {"headline": [asdict(headline) for headline in headlines], **document}
    path.write_text(json.dumps(report, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON knows")


def headline_table(headlines: Sequence[Headline]) -> Table:
    table = Table(title="headline: median (lowest to highest)")
    for number, name in enumerate(("what", "value", "target", "")):
        table.add_column(name, justify="right" if number in (1, 2) else "left")
    for headline in headlines:
        verdict = {True: "met", False: "missed", None: "not measured" if headline.value is None else ""}[headline.met]
        table.add_row(headline.what, _shown(headline), headline.target or "", verdict)
    return table


def _shown(headline: Headline) -> str:
    if headline.value is None:
        return ""
    # Cut, not rounded: 0.9996 is not all of them.
    value = f"{int(headline.value * 1000) / 1000:,g}"
    low, high = headline.spread or (headline.value, headline.value)
    return value if low == high else f"{value} ({low:,.3g} to {high:,.3g})"
