"""Rollouts + update per second, next to TRL's GRPOTrainer: ``./dev bench throughput [--json FILE]``.

Runs alternate (Palestra, TRL, Palestra, TRL, ...), each in a fresh process pinned to the same cores
with the same number of threads.  What is equal, what is not, and the results: docs/benchmarks.md.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import machine, trl_venv
from benchmarks.measurement import Comparison, Run
from benchmarks.policies import start_policy
from benchmarks.report import as_json, phase_table, summary_table
from benchmarks.workload import SETTINGS, Setting, Workload, spec_for

ROOT = Path(__file__).resolve().parent.parent
TARGET_RATIO = 3.0


def main() -> None:
    options = _options()
    home = Path(os.environ.get("PALESTRA_HOME", ROOT / ".palestra")).resolve()
    described = machine.description()
    pinned_to = sorted(os.sched_getaffinity(0))[-options.threads :]
    os.sched_setaffinity(0, pinned_to)  # everything below is started from here and inherits it
    peer = trl_venv.python_of(home)
    comparisons = [_compared(setting, options, home, peer) for setting in options.settings]
    described |= {"pinned_to_cores": len(pinned_to), "load_1min_after": machine.description()["load_1min"]}
    console = Console()
    console.print(summary_table(comparisons), phase_table(comparisons))
    console.print(f"target: {TARGET_RATIO:g}x.  Method and limits: docs/benchmarks.md.  Machine: {described}")
    if options.json:
        options.json.write_text(json.dumps(as_json(comparisons, machine=described, target=TARGET_RATIO), indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench throughput", description="Palestra next to TRL's GRPOTrainer.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    parser.add_argument("--pairs", type=int, default=5, help="paired runs per setting (default 5)")
    parser.add_argument("--steps", type=int, default=5, help="timed steps per run (default 5)")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them (default 2)")
    parser.add_argument("--threads", type=int, default=2, help="threads and cores of either side (default 2)")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    options = parser.parse_args()
    if min(options.pairs, options.steps, options.threads) < 1 or options.warmup < 0:
        parser.error("--pairs, --steps and --threads must be at least 1, --warmup at least 0")
    return options


def _compared(setting: Setting, options: argparse.Namespace, home: Path, peer: Path) -> Comparison:
    spec = spec_for(setting, steps=options.warmup + options.steps, threads=options.threads)
    policy = start_policy(setting, spec, home=home)
    workload = Workload(setting, spec.model_dump(mode="json"), str(policy), options.warmup, options.steps)
    comparison = Comparison(setting, [], [])
    with TemporaryDirectory(prefix="palestra-bench-") as folder:
        workload_file = Path(folder, "workload.json")
        workload.write(workload_file)
        for pair in range(options.pairs):
            comparison.ours.append(_run(Path(sys.executable), "benchmarks.engine_run", workload_file, options.threads))
            comparison.theirs.append(_run(peer, "benchmarks.peers.trl_grpo", workload_file, options.threads))
            print(f"{setting} pair {pair + 1}/{options.pairs}: {comparison.ratios()[-1]:.2f}x", file=sys.stderr)
    return comparison


def _run(python: Path, module: str, workload_file: Path, threads: int) -> Run:
    """Raises RuntimeError with the end of its output when the process fails."""
    run_file = workload_file.with_name("run.json")
    command = [str(python), "-m", module, str(workload_file), str(run_file)]
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{module} exited with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return Run.read(run_file)


if __name__ == "__main__":
    main()
