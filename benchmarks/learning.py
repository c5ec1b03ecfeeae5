"""Recipes against each other, in paired runs: ``./dev bench learning --plan NAME`` or ``--env E --recipes A,B``.

Every pair starts from one cold start.  A run that is done is not done again, so an interrupted benchmark
goes on where it was.  Plans and results: docs/benchmarks.md and docs/learning.md.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.headline import report_file, write_report
from benchmarks.learning_plan import PLANS, BadPlan, Plan, plan_from_file, plan_of_recipes
from benchmarks.learning_plots import write_plots
from benchmarks.learning_runs import RunFailed, run_plan
from benchmarks.learning_statistics import headlines, summary

SHOWN = ("final", "area", "steps_to_90", "tool_error_rate", "first_attempt_error_rate", "grad_norm", "step_seconds")
OF_CONTEXTS = (
    "first", "final", "final_greedy", "turns", "sampled_tokens", "read_tokens", "turn_tokens", "longest_tokens",
    "segments", "notes", "left_turns",
)  # fmt: skip
"""What is shown where recipes differ in their contexts."""


def main() -> int:
    options = _options()
    console = Console(width=max(130, Console().width), highlight=False)
    try:
        plan = _plan(options)
        folder = options.out or _home() / "bench" / "learning" / (options.plan or f"{options.env}-{plan.digest}")
        console.print(f"plan {plan.digest}: {plan.claim}; {len(plan.seeds)} seeds; results in {folder}")
        outcomes = run_plan(plan, folder, processes=options.processes, log=console.print)
    except (BadPlan, RunFailed) as problem:
        print(problem, file=sys.stderr)
        return 2 if isinstance(problem, BadPlan) else 1
    report = {
        "plan": plan.digest,
        "claim": plan.claim,
        "machine": machine.description(),
        **summary(plan.metric, outcomes),
    }
    for file in filter(None, (folder / "summary.json", options.json)):
        write_report(file, headlines(report), report)
    shown = OF_CONTEXTS if any("turn_tokens" in values for values in report["arms"].values()) else SHOWN
    console.print(_table(report, shown))
    console.print(f"curves: {write_plots(plan, outcomes, folder)}")
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    if options.plan:
        path = PLANS / f"{options.plan}.toml"
        if not path.exists():
            known = ", ".join(sorted(plan.stem for plan in PLANS.glob("*.toml")))
            raise BadPlan(f"--plan = {options.plan}: there is no such plan; use one of: {known}")
        return plan_from_file(path, seeds=options.seeds)
    return plan_of_recipes(options.env, options.recipes.split(","), options.seeds or 5)


def _home() -> Path:
    return Path(os.environ.get("PALESTRA_HOME", Path(__file__).resolve().parent.parent / ".palestra")).resolve()


def _table(report: dict[str, Any], shown: Sequence[str]) -> Table:
    """Means with standard errors, and under each arm its paired difference to the first."""
    table = Table(title=f"{report['metric']}, {len(report['seeds'])} seeds: mean (standard error)")
    for column in ("", *shown):
        table.add_column(column)
    for arm, values in report["arms"].items():
        table.add_row(arm, *(_cell(values.get(name)) for name in shown))
        if arm in report["differences"]:
            table.add_row("  difference", *(_cell(report["differences"][arm].get(name), sign="+") for name in shown))
    return table


def _cell(value: dict[str, Any] | None, sign: str = "") -> str:
    return "" if value is None else f"{value['mean']:{sign}.3f} ({value['error']:.3f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench learning", description=__doc__.splitlines()[0])
    parser.add_argument("--plan", help=f"one of {', '.join(sorted(plan.stem for plan in PLANS.glob('*.toml')))}")
    parser.add_argument("--env", help="instead of a plan: the sample run of this environment")
    parser.add_argument("--recipes", help="with --env: presets, comma-separated; the first is the baseline")
    parser.add_argument("--seeds", type=int, help="seeds 0 to N - 1 (default: the plan's, or 5)")
    parser.add_argument("--processes", type=int, default=1, help="runs at once (default 1)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where runs and results go")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write the summary there too")
    options = parser.parse_args()
    if bool(options.plan) == bool(options.env and options.recipes):
        parser.error("give --plan NAME, or --env E with --recipes A,B")
    if min(options.processes, options.seeds or 1) < 1:
        parser.error("--seeds and --processes must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
