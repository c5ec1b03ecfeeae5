"""Seven small runs, each as a user starts it, and every number that they come to.

``python -m tests.engine.equality.runs --record [NAME ...]`` records the numbers of a change that has to change them.

What is compared goes through the command line and through the files that a run leaves behind, so that it says the same
whatever the engine looks like inside.  Where and how those files are laid out, ``written`` alone knows.

The digits depend on the order in which a processor's kernels add.  ``SETTINGS`` choose kernels that every x86 processor
has.  They leave one difference: MKL takes the square roots of AdamW by an approximate instruction (RSQRTPS), which the
makers of processors build each in their own way.  ``arithmetic.py`` tells whether two machines compute alike.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from tests.engine.equality.arithmetic import digest_of_this_machine, processor

ROOT = Path(__file__).parents[3]
RECORDED = Path(__file__).parent / "recorded.json"

SETTINGS = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""The settings of the run's process: torch's own kernels, those of MKL
(https://www.intel.com/content/www/us/en/docs/onemkl, under "Conditional Numerical Reproducibility") and of oneDNN."""

TIMINGS = ("seconds", "tokens_per_s", "peak_rss_mib")
"""The timings in the summary."""
TIMED = "perf/"
"""How the names of the metrics begin that are timings."""

PYTHON_MATH = """
[environment]
id = "python-math"
levels = [1]
[environment.sandbox]
timeout_s = 120
"""
"""On a busy machine the usual 2 s would decide what a tool answers."""
SNAPSHOTS = "snapshots = true"
HOUSEHOLD = """
[environment]
id = "household"
levels = [1]
max_turns = 8
max_turn_tokens = 12
"""
SOKOBAN = """
[environment]
id = "sokoban"
levels = [1]
max_turns = 8
max_turn_tokens = 4
"""
SCALE = """
[dataset]
train_tasks = 24
[resources]
threads = 1
kv_slots = 16
sandboxes = 4
rollout_workers = 2
[schedule]
steps = 3
prompts_per_step = 6
group_size = 4
minibatch_trajectories = 12
checkpoint_every = 3
[evaluation]
tasks = 12
interim_tasks = 6
every = 2
[model]
layers = 1
hidden_size = 48
heads = 2
kv_heads = 1
head_dim = 24
intermediate_size = 96
"""
"""Few tasks, which the cold start half learns by heart: some rollouts succeed and some fail."""
COLD_START = """
[[recipe.stages]]
data = {kind = "demonstrations", count = 2048, wrong_fraction = 0.0, tool_error_fraction = 0.2}
learning_rate = 5e-3
batch_size = 32
steps = """
FAILING_TOOLS_COST = """
[recipe.reward]
tool_error = -0.5
"""
SMALL_REPLAY = """
[recipe.self_imitation]
replay_buffer = 8
warmup_steps = 2
"""
ALL_FROM_EXPERTS = """
[recipe.expert_starts]
share = 1.0
"""


def run_file(name: str, environment: str, context_tokens: int, preset: str, steps: int, parts: str = "") -> str:
    """A run's TOML file; ``steps`` are those of its cold start."""
    head = f'name = "{name}"\nseed = 0'
    model = f"context_tokens = {context_tokens}"
    recipe = f'\n[recipe]\npreset = "{preset}"'
    return "".join((head, environment, SCALE, model, recipe, parts, COLD_START, str(steps), "\n"))


RUN_FILES = {
    "sample": run_file("sample", PYTHON_MATH, 128, "grpo", 140, FAILING_TOOLS_COST),
    "household": run_file("household", HOUSEHOLD, 224, "gigpo", 140),
    "sokoban": run_file("sokoban", SOKOBAN, 320, "grpo", 60),
    "saar": run_file("saar", PYTHON_MATH + SNAPSHOTS, 128, "cleaner", 140),
    "spear": run_file("spear", PYTHON_MATH, 128, "spear-grpo", 140, SMALL_REPLAY),
    "ipa": run_file("ipa", HOUSEHOLD, 224, "ipa", 100, ALL_FROM_EXPERTS),
    "ppo": run_file("ppo", PYTHON_MATH, 128, "ppo", 140, FAILING_TOOLS_COST),
}


@dataclass(frozen=True, slots=True)
class Rollout:
    """A trajectory without its name and its place in a file."""

    purpose: str
    step: int
    question: str
    tokens: list[int]
    """All that the policy read and wrote, in order."""
    numbers: dict[str, Any]
    """What it earned, and what each sampled token got."""
    imitated: bool
    """Whether it begins with an expert's turns that are learned."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a run leaves behind."""

    metrics: list[tuple[int, dict[str, float]]]
    rollouts: list[Rollout]
    weights: Path
    """Those of the newest checkpoint."""


def written(folder: Path) -> Written:
    """The only function here that knows how a run's folder and its events are laid out."""
    lines = [line for path in sorted((folder / "spool").glob("*.jsonl")) for line in path.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    trajectories = {event["trajectory"]["id"]: event["trajectory"] for event in events if event["kind"] == "trajectory"}
    newest = max((folder / "checkpoints").glob("step-*"))
    return Written(
        [(event["step"], event["values"]) for event in events if event["kind"] == "metric"],
        [_rollout(trajectory) for trajectory in trajectories.values()],
        newest / "model" / "model.safetensors",
    )


def _rollout(trajectory: Mapping[str, Any]) -> Rollout:
    """The parts that are compared of a ``trajectory`` event; the last one of its id counts."""
    turns = [turn for segment in trajectory["segments"] for turn in segment["turns"]]
    per_token = ("logprobs", "old_logprobs", "advantages")
    return Rollout(
        purpose=trajectory["purpose"],
        step=_step(trajectory["purpose"], trajectory["sampled_at_version"]),
        question=trajectory["task"]["question"],
        tokens=[token for turn in turns for part in ("context_ids", "token_ids") for token in turn[part]],
        numbers={
            "rewards": [trajectory["reward"], trajectory["rewards"]],
            **{name: [value for turn in turns for value in turn[name] or ()] for name in per_token},
        },
        imitated=any(turn["imitated"] for turn in turns),
    )


def _step(purpose: str, version: int) -> int:
    """The step whose rollouts it is among: version k plays step k + 1, and is evaluated after step k."""
    return version + 1 if purpose == "train" else version


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a run comes to, as ``recorded.json`` holds it."""

    summary: dict[str, Any]
    metrics: dict[str, dict[str, float]]
    """By name, then by step."""
    rollouts: dict[str, dict[str, Any]]
    """By purpose and step: ``tokens`` holds a digest of each rollout's, sorted; the others one digest of all."""
    weights: str


def started(name: str, folder: Path, settings: Mapping[str, str]) -> tuple[Written, dict[str, Any]]:
    """Train in a process of its own; what it wrote, and its summary.  Raises AssertionError with what it said."""
    toml, summary = folder / f"{name}.toml", folder / f"{name}.json"
    toml.write_text(RUN_FILES[name])
    command = [sys.executable, "-m", "engine", "train", str(toml), "--run-dir", str(folder / name)]
    done = subprocess.run(
        [*command, "--in-process", "--json", str(summary)],
        cwd=ROOT,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return written(folder / name), json.loads(summary.read_text())


def numbers_of(left: Written, summary: Mapping[str, Any]) -> Numbers:
    metrics: dict[str, dict[str, float]] = defaultdict(dict)
    for step, values in left.metrics:
        for name, value in values.items():
            if not name.startswith(TIMED):
                metrics[name][str(step)] = value
    groups = defaultdict(list)
    for rollout in left.rollouts:
        groups[f"{rollout.purpose} of step {rollout.step}"].append(rollout)
    return Numbers(
        {name: value for name, value in summary.items() if name not in TIMINGS},
        dict(metrics),
        {name: _digests(rollouts) for name, rollouts in sorted(groups.items())},
        _digest_of_weights(left.weights),
    )


def _digests(rollouts: Iterable[Rollout]) -> dict[str, Any]:
    """In an order of their own, whatever the files' order is."""
    rows = [(_digest([rollout.question, rollout.tokens])[:8], rollout.numbers) for rollout in rollouts]
    names = rows[0][1]
    columns = {name: _digest(sorted([row, json.dumps(numbers[name])] for row, numbers in rows)) for name in names}
    return {"tokens": sorted(row for row, _ in rows), **columns}


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _digest_of_weights(path: Path) -> str:
    """Over the tensors by their names: how the file orders them does not count."""
    hashed = hashlib.sha256()
    with safe_open(path, framework="numpy") as tensors:
        for name in sorted(tensors.keys()):
            tensor = tensors.get_tensor(name)
            hashed.update(f"{name} {tensor.dtype} {tensor.shape} ".encode() + tensor.tobytes())
    return hashed.hexdigest()


def measured(name: str, settings: Mapping[str, str] = SETTINGS) -> Numbers:
    with tempfile.TemporaryDirectory(prefix="equality-") as folder:
        return numbers_of(*started(name, Path(folder), settings))


def recorded() -> dict[str, Any]:
    return json.loads(RECORDED.read_text())


def record(names: Iterable[str]) -> None:
    """Measure these runs and put them into the recording; those of another machine are all measured again."""
    here = {"processor": processor(), "arithmetic": digest_of_this_machine(SETTINGS)}
    before = recorded() if RECORDED.exists() else {}
    known = before.get("runs", {}) if before.get("arithmetic") == here["arithmetic"] else {}
    to_measure = [name for name in RUN_FILES if name in names or name not in known]
    with ThreadPoolExecutor(2) as pool:
        made = dict(zip(to_measure, pool.map(measured, to_measure), strict=True))
    runs = {name: as_document(made[name]) if name in made else known[name] for name in RUN_FILES}
    RECORDED.write_text(_readable({**here, "runs": runs}))
    print(f"{RECORDED}: recorded {', '.join(to_measure)}")


def as_document(numbers: Numbers) -> dict[str, Any]:
    return {name: getattr(numbers, name) for name in Numbers.__slots__}


def _readable(document: Any, depth: int = 0) -> str:
    """JSON with one line per metric, so that a difference between two recordings can be read."""
    if not isinstance(document, dict) or depth == 4:
        return json.dumps(document)
    indent = "  " * (depth + 1)
    rows = (f"{indent}{json.dumps(name)}: {_readable(value, depth + 1)}" for name, value in document.items())
    return "{\n" + ",\n".join(rows) + "\n" + "  " * depth + "}" + ("" if depth else "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.equality.runs", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--record", nargs="*", metavar="NAME", choices=list(RUN_FILES), required=True, help="default: all"
    )
    record(parser.parse_args().record or list(RUN_FILES))


if __name__ == "__main__":
    main()
