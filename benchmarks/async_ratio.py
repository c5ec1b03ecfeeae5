"""What ``./dev bench async`` measures: asynchronous ratios 0, 1, 2 and 4, each with and without redundancy.

The tools of ``slow_tools.py`` sleep by a Pareto law.  For each seed all arms train the same small policy on the same
prompts, in fresh processes one after the other.  *Wall-clock time* runs from the first weights that the generator gets,
before the first evaluation, to the end of the last step: what an overlapping run plays during that evaluation is paid
for by both sides.  Evaluations meet no slow tools.  *Final reward* is the sampled success on held-out tasks after the
last step.  Differences and ratios are taken inside a seed.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks import machine
from benchmarks.async_simulation import Simulated, simulate
from benchmarks.distribution import Distribution
from benchmarks.headline import Headline, at_least, at_most, figure, headline_table, report_file, write_report
from engine.spec.schedule import Schedule

ROOT = Path(__file__).resolve().parent.parent
TARGET_SPEEDUP = 2.8
RATIOS = (0, 1, 2, 4)
PROMPTS, GROUP_SIZE = 4, 4
REDUNDANT_MEMBERS, REDUNDANT_GROUPS = 2, 2
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Number of pairs -> the 0.975 quantile of Student's t with one degree of freedom less."""
RUN = """\
name = "async"
seed = {seed}
[environment]
id = "import"
path = "benchmarks.slow_tools:SlowTools"
options = {{ seed = {seed} }}
max_turns = 4
max_turn_tokens = 8
[dataset]
train_tasks = 20000
heldout_tasks = 200
[model]
layers = 1
hidden_size = 32
heads = 4
kv_heads = 2
head_dim = 8
intermediate_size = 64
context_tokens = 64
[recipe]
preset = "grpo"
[[recipe.stages]]
steps = 80
batch_size = 32
learning_rate = 4e-3
[recipe.stages.data]
kind = "demonstrations"
count = 1024
wrong_fraction = 0.5
tool_error_fraction = 0.1
[recipe.optimizer]
learning_rate = 3e-3
[resources]
threads = 1
rollout_workers = 1
kv_slots = 128
[schedule]
steps = {steps}
prompts_per_step = {prompts}
group_size = {group_size}
minibatch_trajectories = {batch}
checkpoint_every = 1000
async_ratio = {ratio}
redundant_members = {redundant_members}
redundant_groups = {redundant_groups}
[evaluation]
every = 1000
tasks = 64
interim_tasks = 8
"""


@dataclass(frozen=True)
class Arm:
    ratio: int
    redundant: bool

    @property
    def name(self) -> str:
        return f"ratio {self.ratio}{', redundant' if self.redundant else ''}"

    def run_file(self, *, seed: int, steps: int) -> str:
        return RUN.format(
            seed=seed,
            steps=steps,
            prompts=PROMPTS,
            group_size=GROUP_SIZE,
            batch=PROMPTS * GROUP_SIZE,
            ratio=self.ratio,
            redundant_members=REDUNDANT_MEMBERS if self.redundant else 0,
            redundant_groups=REDUNDANT_GROUPS if self.redundant else 0,
        )


SYNCHRONOUS = Arm(0, redundant=False)
ARMS = tuple(Arm(ratio, redundant) for ratio in RATIOS for redundant in (False, True))
QUICK_ARMS = tuple(arm for arm in ARMS if arm.ratio in (0, 2))


@dataclass(frozen=True)
class Measured:
    """The measures of one run."""

    wall_s: float
    reward: float
    """Sampled success on held-out tasks after the last step."""
    trainer_waited_s: float
    staleness_max: float
    unused_rollouts: float
    groups: list[list[list[float]]]
    """Prompt -> rollout -> turn: how long the tools of the turn took.  Those of rollouts that came back."""


Results = dict[Arm, list[Measured]]
"""Arm -> its runs, by seed."""


def main() -> None:
    options = _options()
    arms = QUICK_ARMS if options.quick else ARMS
    results: Results = {arm: [] for arm in arms}
    with TemporaryDirectory(prefix="palestra-bench-") as folder:
        for seed in range(options.seeds):
            for arm in arms:
                run = measured(arm, Path(folder, f"{seed}-{arm.name}"), seed=seed, steps=options.steps)
                results[arm].append(run)
                print(f"seed {seed}, {arm.name}: {run.wall_s:.1f} s, success {run.reward:.3f}", file=sys.stderr)
    simulated = simulated_by_ratio(results, turn_s=options.turn_seconds, update_s=options.update_seconds)
    tools_alone = simulated_by_ratio(results, turn_s=0.0, update_s=0.0)
    rows = [*headlines(results, simulated), *bounds(tools_alone)]
    Console(width=max(110, Console().width)).print(headline_table(rows))
    if options.json:
        write_report(options.json, rows, document(results, simulated, options))


def measured(arm: Arm, folder: Path, *, seed: int, steps: int) -> Measured:
    """Raises RuntimeError with the end of its output if the run fails."""
    folder.mkdir(parents=True)
    file = folder / "run.toml"
    file.write_text(arm.run_file(seed=seed, steps=steps))
    command = [sys.executable, "-m", "engine", "train", str(file), "--in-process", "--run-dir", str(folder / "run")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{arm.name}, seed {seed}, exited with {done.returncode}:\n{done.stderr[-3000:]}")
    return measured_in(list(_events(folder / "run" / "spool")), steps=steps)


def _events(spool: Path) -> Iterator[dict[str, Any]]:
    for segment in sorted(spool.glob("*.jsonl"), key=lambda path: int(path.stem)):
        for line in segment.read_text().splitlines():
            yield json.loads(line)


def measured_in(events: Sequence[dict[str, Any]], *, steps: int) -> Measured:
    """From the log of a whole run."""
    begin = next(event["at"] for event in events if event["kind"] == "phase" and event["phase"] == "sync-weights")
    metrics = [event for event in events if event["kind"] == "metric"]
    trained = [event for event in metrics if "perf/step_seconds" in event["values"]]
    end = next(event["at"] for event in trained if event["step"] == steps)
    final = next(event["values"] for event in reversed(metrics) if "eval/success_sampled" in event["values"])
    return Measured(
        wall_s=end - begin,
        reward=final["eval/success_sampled"],
        trainer_waited_s=_sum(trained, "buffer/trainer_waited_seconds"),
        staleness_max=max(event["values"]["train/staleness_max"] for event in trained),
        unused_rollouts=_sum(trained, "redundancy/unused_rollouts"),
        groups=_groups([event["trajectory"] for event in events if event["kind"] == "trajectory"]),
    )


def _sum(events: Sequence[dict[str, Any]], key: str) -> float:
    total: float = sum(event["values"].get(key, 0.0) for event in events)
    return total


def _groups(trajectories: Sequence[dict[str, Any]]) -> list[list[list[float]]]:
    """The rewards of the rollouts that were trained on, by prompt."""
    groups: dict[int, list[list[float]]] = {}
    for trajectory in trajectories:
        if trajectory["purpose"] == "train":
            turns = [turn for segment in trajectory["segments"] for turn in segment["turns"]]
            seconds = [sum(call["seconds"] for call in turn["tool_calls"]) for turn in turns]
            groups.setdefault(trajectory["prompt"], []).append(seconds)
    return [groups[prompt] for prompt in sorted(groups)]


def simulated_by_ratio(results: Results, *, turn_s: float, update_s: float) -> dict[int, list[Simulated]]:
    """All ratios over the traces of the synchronous runs, which have every rollout's tool times."""
    return {
        ratio: [
            simulate(run.groups, schedule=_schedule(ratio), turn_s=turn_s, update_s=update_s)
            for run in results[SYNCHRONOUS]
        ]
        for ratio in RATIOS
    }


def _schedule(ratio: int) -> Schedule:
    batch = PROMPTS * GROUP_SIZE
    return Schedule(async_ratio=ratio, prompts_per_step=PROMPTS, group_size=GROUP_SIZE, minibatch_trajectories=batch)


def headlines(results: Results, simulated: dict[int, list[Simulated]]) -> list[Headline]:
    synchronous = results[SYNCHRONOUS]
    rows = []
    for arm, runs in results.items():
        if arm == SYNCHRONOUS:
            continue
        what = f"wall-clock time of ratio 0 / {arm.name}"
        rows.append(
            at_least(what, speedups(synchronous, runs), TARGET_SPEEDUP)
            if arm.ratio == 2
            else figure(what, speedups(synchronous, runs))
        )
        if arm.redundant and arm.ratio:
            base = Arm(0, redundant=True)
            rows.append(figure(f"wall-clock time of {base.name} / {arm.name}", speedups(results[base], runs)))
    rows += [reward_row(arm, synchronous, runs) for arm, runs in results.items() if arm != SYNCHRONOUS]
    rows += [
        figure(f"idle GPUs, simulated, ratio {ratio}", Distribution.of([run.idle for run in runs]))
        for ratio, runs in simulated.items()
    ]
    return rows


def bounds(tools_alone: dict[int, list[Simulated]]) -> list[Headline]:
    """What each ratio would give, over the same tool times, if all else took no time, on any machine."""
    synchronous = tools_alone[0]
    return [
        figure(f"ratio {ratio} alone, if only tools took time", Distribution.of(_shorter(synchronous, runs)))
        for ratio, runs in tools_alone.items()
        if ratio
    ]


def _shorter(slower: Sequence[Simulated], faster: Sequence[Simulated]) -> list[float]:
    return [one.seconds / other.seconds for one, other in zip(slower, faster, strict=True)]


def speedups(slower: Sequence[Measured], faster: Sequence[Measured]) -> Distribution:
    """Seed by seed."""
    return Distribution.of([one.wall_s / other.wall_s for one, other in zip(slower, faster, strict=True)])


def reward_row(arm: Arm, synchronous: Sequence[Measured], runs: Sequence[Measured]) -> Headline:
    """Equal within noise: the mean of the paired differences lies within the half-width of its 95 % interval."""
    differences = [run.reward - base.reward for base, run in zip(synchronous, runs, strict=True)]
    what = f"final success, {arm.name} minus ratio 0"
    if len(differences) not in STUDENT_95:
        return figure(what, Distribution.of(differences))
    row = at_most(what, abs(statistics.fmean(differences)), half_width(differences))
    spread = (min(differences), max(differences))
    return Headline(what, statistics.fmean(differences), spread, f"|mean| {row.target}", row.met)


def half_width(differences: Sequence[float]) -> float:
    """Half the width of the 95 % interval of their mean, by Student's t."""
    return STUDENT_95[len(differences)] * statistics.stdev(differences) / math.sqrt(len(differences))


def document(results: Results, simulated: dict[int, list[Simulated]], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "machine": machine.description(),
        "steps": options.steps,
        "simulation": {
            "turn_seconds": options.turn_seconds,
            "update_seconds": options.update_seconds,
            "runs": {ratio: [asdict(run) | {"idle": run.idle} for run in runs] for ratio, runs in simulated.items()},
        },
        "runs": {arm.name: [asdict(run) for run in runs] for arm, runs in results.items()},
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev bench async", description="Overlapping runs next to a synchronous one."
    )
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write all numbers there")
    parser.add_argument("--quick", action="store_true", help="one seed, ratios 0 and 2: about a minute and a half")
    parser.add_argument("--seeds", type=int, help="paired seeds (default 5)")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run, 16 rollouts each (default 12)")
    parser.add_argument("--turn-seconds", type=float, default=0.5, help="of the simulated GPU, per turn (default 0.5)")
    parser.add_argument("--update-seconds", type=float, default=0.5, help="of the other one, per step (default 0.5)")
    options = parser.parse_args()
    options.seeds = options.seeds or (1 if options.quick else 5)
    if options.seeds < 1 or options.steps < 1 or min(options.turn_seconds, options.update_seconds) <= 0:
        parser.error("--seeds and --steps must be at least 1, --turn-seconds and --update-seconds above 0")
    return options
