"""Learning curves with 95 % bands over the seeds, as one page that needs no network."""

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from benchmarks.learning_plan import Plan
from benchmarks.learning_runs import RunResult
from benchmarks.learning_statistics import band

SHOWN = ("train/success", "train/tool_error_rate", "train/grad_norm", "train/entropy", "perf/step_seconds")
COLOURS = ("31,119,180", "255,127,14", "44,160,44", "214,39,40")


def write_plots(plan: Plan, outcomes: Sequence[RunResult], folder: Path) -> Path:
    keys = (plan.metric, *SHOWN)
    figure = make_subplots(rows=2, cols=3, subplot_titles=keys)
    for place, key in enumerate(keys):
        row, column = divmod(place, 3)
        for number, arm in enumerate(plan.arms):
            steps, means, widths = band([outcome for outcome in outcomes if outcome.arm == arm.name], key)
            colour = COLOURS[number % len(COLOURS)]
            upper = [mean + width for mean, width in zip(means, widths, strict=True)]
            lower = [mean - width for mean, width in zip(means, widths, strict=True)]
            at = {"row": row + 1, "col": column + 1}
            figure.add_trace(
                go.Scatter(x=steps + steps[::-1], y=upper + lower[::-1], fill="toself", line={"width": 0},
                           fillcolor=f"rgba({colour},0.15)", showlegend=False, hoverinfo="skip"), **at
            )  # fmt: skip
            figure.add_trace(
                go.Scatter(x=steps, y=means, name=arm.name, legendgroup=arm.name, showlegend=place == 0,
                           line={"color": f"rgb({colour})"}), **at
            )  # fmt: skip
    figure.update_layout(title=f"{plan.claim} ({len(plan.seeds)} seeds, 95 % bands)", template="plotly_white")
    path = folder / "curves.html"
    figure.write_html(path, include_plotlyjs=True)
    return path
