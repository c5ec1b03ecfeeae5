"""Rollouts + update per second, next to TRL's GRPOTrainer: ``./dev bench throughput [--json FILE]``.

Runs alternate (Palestra, TRL, Palestra, TRL, ...), each in a fresh process pinned to the same cores
with the same number of threads.  What is equal, what is not, and the results: docs/benchmarks.md.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks import machine, peer_venvs
from benchmarks.headline import report_file, write_report
from benchmarks.machine import CoreTime, wait_until_quiet
from benchmarks.measurement import Comparison, Run
from benchmarks.policies import start_policy
from benchmarks.report import as_json, cost_table, headlines, summary_table
from benchmarks.workload import PLACES, ROLLOUTS, SETTINGS, TARGETS, Setting, Workload, has_slow_tools, spec_for

ROOT = Path(__file__).resolve().parent.parent
IN_TURNS, OVERLAPPING = "benchmarks.engine_run", "benchmarks.loop_run"
"""What runs our side: a step's phases one after the other, or a run that overlaps them."""
QUIET_SHARE = 0.1
"""The share of the cores' time: what other processes may take before the numbers are called unreliable."""


def main() -> None:
    options = _options()
    home = Path(os.environ.get("PALESTRA_HOME", ROOT / ".palestra")).resolve()
    described = machine.description()
    pinned_to = sorted(os.sched_getaffinity(0))[-options.threads :]
    os.sched_setaffinity(0, pinned_to)  # everything below is started from here and inherits it
    peer = peer_venvs.python_of(peer_venvs.TRL, home)
    comparisons = [_compared(setting, options, home, peer) for setting in options.settings]
    described |= {"pinned_to_cores": len(pinned_to)}
    _print(comparisons, described)
    if options.json:
        document = as_json(comparisons, machine=described)
        write_report(options.json, headlines(comparisons), document)


def _print(comparisons: list[Comparison], described: dict[str, Any]) -> None:
    console = Console(width=max(110, Console().width), highlight=False)
    console.print(summary_table(comparisons), cost_table(comparisons))
    targets = ", ".join(f"{setting} {target:g}x" for setting, target in TARGETS.items())
    console.print(f"targets: {targets}.  Method and limits: docs/benchmarks.md")
    console.print(", ".join(f"{name} {value}" for name, value in described.items()))
    disturbed = max(comparison.others_share() for comparison in comparisons)
    if disturbed > QUIET_SHARE:
        console.print(
            f"NOT RELIABLE: other processes took up to {disturbed:.0%} of the cores during a run.  "
            "Threads of one process wait for each other, so this slows both sides by more than its share, "
            "and not equally.  Measure again when the machine is quiet."
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench throughput", description="Palestra next to TRL's GRPOTrainer.")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write all numbers there")
    parser.add_argument("--pairs", type=int, default=5, help="paired runs per setting (default 5)")
    parser.add_argument(
        "--steps", type=int, default=5, help="timed steps per run, more where they are smaller (default 5)"
    )
    parser.add_argument("--warmup", type=int, default=2, help="steps before them (default 2)")
    parser.add_argument("--threads", type=int, default=2, help="threads and cores of either side (default 2)")
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        metavar="S",
        help="on a shared machine: for up to S seconds per setting wait for quiet and measure disturbed pairs again",
    )
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    options = parser.parse_args()
    if min(options.pairs, options.steps, options.threads) < 1 or options.warmup < 0:
        parser.error("--pairs, --steps and --threads must be at least 1, --warmup at least 0")
    return options


def _compared(setting: Setting, options: argparse.Namespace, home: Path, peer: Path) -> Comparison:
    timed_steps = options.steps * PLACES // ROLLOUTS.get(setting, PLACES)  # as many rollouts in every setting
    spec = spec_for(setting, steps=options.warmup + timed_steps, threads=options.threads)
    policy = start_policy(setting, spec, home=home)
    workload = Workload(setting, spec.model_dump(mode="json"), str(policy), options.warmup, timed_steps)
    comparison = Comparison(setting, [], [])
    with TemporaryDirectory(prefix="palestra-bench-") as folder:
        workload_file = Path(folder, "workload.json")
        workload.write(workload_file)
        patient_until = time.monotonic() + options.patience
        while len(comparison.ours) < options.pairs:
            wait_until_quiet(os.sched_getaffinity(0), QUIET_SHARE, patient_until)
            module = OVERLAPPING if has_slow_tools(setting) else IN_TURNS
            ours = run_of(Path(sys.executable), module, workload_file, options.threads)
            theirs = run_of(peer, "benchmarks.peers.trl_grpo", workload_file, options.threads)
            if max(ours.others_share, theirs.others_share) > QUIET_SHARE and time.monotonic() < patient_until:
                comparison.set_aside.append((ours, theirs))
                print(f"{setting}: a pair was disturbed and is measured again", file=sys.stderr)
                continue
            comparison.ours.append(ours)
            comparison.theirs.append(theirs)
            print(f"{setting} {len(comparison.ours)}/{options.pairs}: {comparison.ratios()[-1]:.2f}x", file=sys.stderr)
    return comparison


def run_of(python: Path, module: str, workload_file: Path, threads: int) -> Run:
    """Raises RuntimeError with the end of its output when the process fails."""
    run_file, cores = workload_file.with_name("run.json"), os.sched_getaffinity(0)
    command = [str(python), "-m", module, str(workload_file), str(run_file)]
    count = str(threads)
    environment = os.environ | {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "PYTHONPATH": str(ROOT)}
    begin = CoreTime.now(cores)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{module} exited with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    others_share = begin.others_share_until(CoreTime.now(cores), len(cores))
    return replace(Run.read(run_file), others_share=others_share)


if __name__ == "__main__":
    main()
