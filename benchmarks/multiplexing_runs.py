"""Small real runs with two generators, one of which is lent to the trainer or is not: ``./dev bench scale --record``.

The environment is that of ``./dev bench async``: tools that sleep by a Pareto law.  Both arms play the same prompts
with the same latencies, seed by seed, one after the other in processes of their own.  The first log is the trace.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import machine
from benchmarks.async_ratio import RUN
from benchmarks.scale_traces import TRACE, RunMeasures, Setting, Trace, outcome_in, trace_in

ROOT = Path(__file__).resolve().parent.parent
LENDING = Setting(generators=2, trainer=1, kv_slots=8, async_ratio=1, prompts_per_step=4, group_size=4, hold_s=0.5)
STEPS, SEEDS = 20, 1


def record(path: Path = TRACE) -> None:
    """Raises RuntimeError with the end of its output if a run fails."""
    trace: Trace | None = None
    outcomes: dict[str, list[RunMeasures]] = {"lent": [], "not lent": []}
    with TemporaryDirectory(prefix="palestra-scale-") as folder:
        for seed in range(SEEDS):
            for arm, found in outcomes.items():
                events = list(_events(Path(folder, f"{seed}-{arm}"), seed=seed, lends=arm == "lent"))
                trace = trace or trace_in(events, LENDING)
                found.append(outcome_in(events, LENDING))
                print(f"seed {seed}, {arm}: {found[-1]}", file=sys.stderr)
    assert trace is not None
    document = {
        "made_by": "./dev bench scale --record",
        "machine": machine.description(),
        "steps": STEPS,
        "arms": {arm: [asdict(outcome) for outcome in found] for arm, found in outcomes.items()},
        "trace": trace.document(),
    }
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n")


def run_file(setting: Setting, *, seed: int, lends: bool, steps: int = STEPS) -> str:
    text = RUN.format(
        seed=seed,
        steps=steps,
        prompts=setting.prompts_per_step,
        group_size=setting.group_size,
        batch=setting.batch,
        ratio=setting.async_ratio,
        redundant_members=0,
        redundant_groups=0,
    )
    text = text.replace("kv_slots = 128\n", f"kv_slots = {setting.kv_slots}\ngenerators = {setting.generators}\n")
    lending = f"multiplexing = true\nmultiplexing_hold_s = {setting.hold_s}\n" if lends else ""
    return text.replace("[evaluation]\n", f"{lending}[evaluation]\n")


def _events(folder: Path, *, seed: int, lends: bool) -> Iterator[dict[str, Any]]:
    folder.mkdir(parents=True)
    file = folder / "run.toml"
    file.write_text(run_file(LENDING, seed=seed, lends=lends))
    command = [sys.executable, "-m", "engine", "train", str(file), "--in-process", "--run-dir", str(folder / "run")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{file} exited with {done.returncode}:\n{done.stderr[-3000:]}")
    for segment in sorted((folder / "run" / "spool").glob("*.jsonl"), key=lambda path: int(path.stem)):
        for line in segment.read_text().splitlines():
            yield json.loads(line)
