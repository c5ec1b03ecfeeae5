"""A training step of this checkout against one of another commit: ``./dev bench step --against COMMIT [--json FILE]``.

Both train the same small run of python-math, each in a process of its own, in alternate order on one core, with the
defaults of their sandboxes.  Told per pair: seconds of all steps with this checkout / with the other commit,
processor time of the whole run, sandboxes included, and the most memory that the run's process had.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import machine
from benchmarks.distribution import Distribution
from benchmarks.headline import Headline, at_most, figure, headline_table, report_file, write_report

ROOT = Path(__file__).resolve().parent.parent
TARGET = 1.0
PHASES = ("sync-weights", "collect", "score", "credit", "update")
"""The phases of a step; a run has others, which are the same on both sides."""
ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")
RUN = """\
name = "step"
seed = 0
[environment]
id = "python-math"
levels = [1, 2, 3]
max_turns = 5
max_turn_tokens = 32
[dataset]
train_tasks = 20000
heldout_tasks = 510
[model]
layers = 2
hidden_size = 96
heads = 4
kv_heads = 2
head_dim = 24
intermediate_size = 256
context_tokens = 128
[recipe]
preset = "grpo"
{supervised}
[resources]
threads = 1
rollout_workers = 1
kv_slots = 64
sandboxes = 32
[schedule]
steps = {steps}
prompts_per_step = 32
group_size = 8
minibatch_trajectories = 256
checkpoint_every = 1000
[evaluation]
every = 1000
tasks = 30
interim_tasks = 30
"""
STAGE = """\
[[recipe.stages]]
steps = 40
batch_size = 64
learning_rate = 2e-3
[recipe.stages.data]
kind = "demonstrations"
count = 512
wrong_fraction = 0.6
tool_error_fraction = 0.2"""
COLD_START = """\
[recipe.cold_start]
demonstrations = 512
steps = 40
batch_size = 64
learning_rate = 2e-3
wrong_fraction = 0.6
tool_error_fraction = 0.2"""
"""The same stage as commits write it whose recipes have one at most."""
STAGES = Path("engine/training/stages.py")
"""A file of the commits whose recipes have a list of stages."""


@dataclass(frozen=True)
class Measured:
    """The times of one run."""

    steps_s: float
    """Wall-clock time of its steps."""
    collect_s: float
    """The part of it in which rollouts were sampled."""
    processor_s: float | None
    """The processor time of the whole run with all that it started; None where no cgroup counts it (v1 ``cpuacct``)."""
    peak_mib: float
    """What of the run's process was resident at most, from its start to its end."""


def main() -> None:
    options = _options()
    with TemporaryDirectory(prefix="palestra-bench-") as folder, _checkout(options.against, Path(folder)) as other:
        specs = {where: Path(folder, f"run-{where == ROOT}.toml") for where in (ROOT, other)}
        for where, spec in specs.items():
            spec.write_text(run_for(where, steps=options.steps))
        pairs = []
        for number in range(options.pairs):
            order = (ROOT, other) if number % 2 else (other, ROOT)
            runs = {
                where: measured(where, specs[where], Path(folder, f"run-{number}-{where == ROOT}"), options.core)
                for where in order
            }
            pairs.append((runs[ROOT], runs[other]))
            print(f"pair {number + 1}: {runs[ROOT]} / {runs[other]}", file=sys.stderr)
    rows = headlines(pairs)
    Console(width=max(110, Console().width)).print(headline_table(rows))
    if options.json:
        report = [{"ours": asdict(ours), "theirs": asdict(theirs)} for ours, theirs in pairs]
        write_report(
            options.json, rows, {"machine": machine.description(), "against": options.against, "pairs": report}
        )


def run_for(checkout: Path, *, steps: int) -> str:
    """The run's spec as the checkout reads it: the same one, in whichever form its recipes have for a first stage."""
    return RUN.format(steps=steps, supervised=STAGE if (checkout / STAGES).exists() else COLD_START)


def headlines(pairs: list[tuple[Measured, Measured]]) -> list[Headline]:
    ratios = {
        "steps, seconds": [ours.steps_s / theirs.steps_s for ours, theirs in pairs],
        "rollouts of steps, seconds": [ours.collect_s / theirs.collect_s for ours, theirs in pairs],
        "whole run, processor time": [
            ours.processor_s / theirs.processor_s for ours, theirs in pairs if ours.processor_s and theirs.processor_s
        ],
        "peak memory of the run's process": [ours.peak_mib / theirs.peak_mib for ours, theirs in pairs],
    }
    peaks = {
        "this": [ours.peak_mib for ours, _ in pairs],
        "other": [theirs.peak_mib for _, theirs in pairs],
    }
    return [
        *(at_most(f"{what}: this / other", _spread(values), TARGET) for what, values in ratios.items()),
        *(figure(f"peak memory, MiB: {whose}", _spread(values)) for whose, values in peaks.items()),
    ]


def _spread(values: list[float]) -> Distribution | None:
    return Distribution.of(values) if values else None


def measured(checkout: Path, spec: Path, folder: Path, core: int) -> Measured:
    """Raises ``CalledProcessError`` if the run fails."""
    summary = folder.with_suffix(".json")
    command = [sys.executable, "-m", "engine", "train", str(spec), "--in-process"]
    command += ["--run-dir", str(folder), "--json", str(summary)]
    with _account() as account:

        def enter() -> None:
            os.sched_setaffinity(0, {core})
            if account is not None:
                (account / "cgroup.procs").write_text("0")

        environment = os.environ | {"PYTHONPATH": str(checkout)}
        run = subprocess.Popen(command, cwd=checkout, env=environment, preexec_fn=enter, stdout=subprocess.DEVNULL)
        peak_mib = _waited_for(run)
        spent_s = None if account is None else int((account / "cpuacct.usage").read_text()) / 1e9
    seconds = json.loads(summary.read_text())["seconds"]
    return Measured(sum(seconds[phase] for phase in PHASES), seconds["collect"], spent_s, peak_mib)


def _waited_for(run: "subprocess.Popen[bytes]") -> float:
    """The most MiB that were resident of it, or of one process that it started, which are all smaller."""
    _, status, usage = os.wait4(run.pid, 0)
    run.returncode = os.waitstatus_to_exitcode(status)
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, run.args)
    return usage.ru_maxrss / 1024


@contextmanager
def _account() -> Iterator[Path | None]:
    """A cgroup that counts processor time, of guests too, for whom nobody waits; None where none can be made."""
    account = ACCOUNTS / f"palestra-bench-{os.getpid()}"
    try:
        account.mkdir()
    except OSError as error:
        print(f"processor time is not measured: {error}", file=sys.stderr)
        yield None
        return
    try:
        yield account
    finally:
        account.rmdir()


@contextmanager
def _checkout(commit: str, folder: Path) -> Iterator[Path]:
    """The files of a commit."""
    place = folder / "other"
    subprocess.run(
        ["git", "worktree", "add", "--detach", str(place), commit], cwd=ROOT, check=True, capture_output=True
    )
    try:
        yield place
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=ROOT, check=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench step", description="A step here against one of another commit.")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write all numbers there")
    parser.add_argument("--against", default="HEAD~1", metavar="COMMIT", help="the other commit (default HEAD~1)")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--steps", type=int, default=4, help="steps of a run, 256 rollouts each (default 4)")
    parser.add_argument("--core", type=int, default=0, help="where both run (default 0)")
    options = parser.parse_args()
    if min(options.pairs, options.steps) < 1 or options.core not in os.sched_getaffinity(0):
        parser.error("--pairs and --steps must be at least 1, --core one that this process may use")
    return options


if __name__ == "__main__":
    main()
