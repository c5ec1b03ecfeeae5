"""What SAAR and self-imitation add to a step: ``./dev bench overhead [--json FILE]``.

The same start weights, tasks and seeds with and without the part, in alternate processes on the same
cores; the learning rate is so small that the policy stays what it was.  Told per pair: seconds with /
seconds without, the same of processor time, which a busy machine disturbs less, and how often the part was
at work in a step, without which a ratio would mean nothing.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.distribution import Distribution
from benchmarks.headline import Headline, at_most, report_file, write_report
from benchmarks.measurement import Run
from benchmarks.policies import start_policy
from benchmarks.throughput import run_of
from benchmarks.workload import LEARNING_RATE, Workload
from engine.spec.run import RunSpec

ROOT = Path(__file__).resolve().parent.parent
SCHEDULE = {"prompts_per_step": 16, "group_size": 8, "minibatch_trajectories": 128}
PARTS: dict[str, dict[str, Any]] = {
    "saar": {
        "paper": "CLEANER: +8.8 % of latency",
        "most": 1.088,
        "environment": {
            "id": "python-math",
            "levels": [1, 2],
            "max_turns": 5,
            "max_turn_tokens": 32,
            "sandbox": {"reuse": "reset"},
        },  # fmt: skip
        "on": {"purification": {}},
        "off": {"purification": False},
        "use": "purified",
        "guesses": 0.0,
    },
    "self-imitation": {
        "paper": "SPEAR: 10 to 25 %",
        "most": 1.25,
        "environment": {"id": "household", "levels": [1], "max_turns": 8, "max_turn_tokens": 12},
        # A step fills this buffer, so that every second one replays.
        "on": {"self_imitation": {"replay_buffer": 32, "warmup_steps": 1}},
        "off": {"self_imitation": False},
        "use": "replayed",
        # A policy that succeeds nearly always has nothing left to imitate.
        "guesses": 0.5,
    },
}


def main() -> None:
    options = _options()
    home = Path(os.environ.get("PALESTRA_HOME", ROOT / ".palestra")).resolve()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.threads :])
    report = {name: _measured(PARTS[name], options, home) for name in options.parts}
    Console(width=max(110, Console().width), highlight=False).print(_table(report))
    if options.json:
        write_report(options.json, headlines(report), {"machine": machine.description(), "parts": report})


def headlines(report: dict[str, Any]) -> list[Headline]:
    """The published share is what is allowed."""
    return [
        at_most(
            f"{name}: a step with it / without it",
            Distribution.of([pair["seconds"] for pair in part["pairs"]]),
            PARTS[name]["most"],
        )
        for name, part in report.items()
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench overhead", description="What parts of a recipe add to a step.")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write all numbers there")
    parser.add_argument("--pairs", type=int, default=5, help="paired runs per part (default 5)")
    parser.add_argument("--steps", type=int, default=6, help="timed steps per run, an even number (default 6)")
    parser.add_argument("--threads", type=int, default=2, help="threads and cores (default 2)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    if min(options.pairs, options.steps, options.threads) < 1 or options.steps % 2:
        parser.error("--pairs and --threads must be at least 1, --steps even and at least 2")
    return options


def _measured(part: dict[str, Any], options: argparse.Namespace, home: Path) -> dict[str, Any]:
    specs = {which: _spec(part, which, options) for which in ("off", "on")}
    policy = start_policy("tool-use", specs["off"], home=home, guesses=part["guesses"])
    pairs = []
    with TemporaryDirectory(prefix="palestra-bench-") as folder:
        file = Path(folder, "workload.json")
        for number in range(options.pairs):
            runs = {}
            for which in ("off", "on") if number % 2 else ("on", "off"):
                spec = specs[which].model_dump(mode="json")
                Workload("tool-use", spec, str(policy), warmup_steps=2, timed_steps=options.steps).write(file)
                runs[which] = run_of(Path(sys.executable), "benchmarks.engine_run", file, options.threads)
            pairs.append(
                {
                    "seconds": runs["on"].seconds / runs["off"].seconds,
                    "cpu": _cpu(runs["on"]) / _cpu(runs["off"]),
                    "uses": statistics.mean(getattr(step, part["use"]) for step in runs["on"].steps),
                }
            )
            print(f"{number + 1}/{options.pairs}: {pairs[-1]}", file=sys.stderr)
    return {"paper": part["paper"], "pairs": pairs}


def _spec(part: dict[str, Any], which: str, options: argparse.Namespace) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "overhead",
            "environment": part["environment"],
            "model": {"context_tokens": 224},
            "recipe": {"preset": "grpo", "stages": [], "optimizer": {"learning_rate": LEARNING_RATE}} | part[which],
            "resources": {"threads": options.threads, "kv_slots": 64, "sandboxes": 64},
            "schedule": SCHEDULE | {"steps": 2 + options.steps},
        }
    )


def _cpu(run: Run) -> float:
    return sum(step.cpu for step in run.steps)


def _table(report: dict[str, Any]) -> Table:
    table = Table(title="with the part / without it: median (lowest to highest)")
    for column in ("part", "seconds", "processor time", "at work per step", "pairs", "published"):
        table.add_column(column)
    for name, part in report.items():
        found = (Distribution.of([pair[key] for pair in part["pairs"]]) for key in ("seconds", "cpu", "uses"))
        table.add_row(name, *map(str, found), str(len(part["pairs"])), part["paper"])
    return table


if __name__ == "__main__":
    main()
