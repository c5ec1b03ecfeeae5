"""Two small runs, and ``python -m engine train`` for them in a process of its own, seen through the spool it writes."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.engine.dying import dying

ROOT = Path(__file__).parents[2]

SCALE = """
[resources]
threads = 1
kv_slots = 16
sandboxes = 4
rollout_workers = 2
[schedule]
steps = 5
prompts_per_step = 6
group_size = 4
minibatch_trajectories = 8
checkpoint_every = 2
[evaluation]
tasks = 8
interim_tasks = 4
every = 3
"""
"""So small that a run takes seconds."""

RUN = f"""
name = "small"
seed = 3
[environment]
id = "python-math"
levels = [1]
[model]
layers = 1
hidden_size = 32
heads = 2
kv_heads = 1
head_dim = 16
intermediate_size = 64
[recipe]
preset = "grpo"
[recipe.reward]
tool_error = -0.5
[[recipe.stages]]
data = {{kind = "demonstrations", count = 256, wrong_fraction = 0.2}}
learning_rate = 3e-3
steps = 200
batch_size = 16
{SCALE}"""
"""Failing tools cost reward, so that every step changes the weights."""

PARTS = f"""
name = "parts"
seed = 3
[environment]
id = "python-math"
levels = [1]
[environment.sandbox]
snapshots = true
[dataset]
train_tasks = 24
[model]
layers = 1
hidden_size = 48
heads = 2
kv_heads = 1
head_dim = 24
intermediate_size = 96
[recipe.credit]
kind = "attribution"
[recipe.reward]
tool_error = -0.5
[recipe.selection]
masks = ["overlong", "incomplete", "void-turn", "repetitive", "unreadable"]
keep_groups = 0.75
[recipe.selection.dynamic_sampling]
max_rounds = 2
[recipe.purification]
share = 0.5
[recipe.expert_starts]
share = 0.5
[[recipe.stages]]
data = {{kind = "demonstrations", count = 2048, wrong_fraction = 0.0, tool_error_fraction = 0.1}}
learning_rate = 5e-3
steps = 140
batch_size = 32
{SCALE}"""
"""Few tasks, which come again, and a policy that half knows them: every part of the recipe has something to do."""


class Training:
    """``python -m engine train`` in a process of its own, seen through the spool that it writes."""

    def __init__(self, toml: Path, folder: Path) -> None:
        self.folder = folder
        self._toml = toml
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End what a failed test left behind."""
        for process in self._processes:
            process.kill()
            process.wait()

    def start(self, *options: str, program: Sequence[str] = ("engine",)) -> subprocess.Popen[str]:
        train = ["train", str(self._toml), "--run-dir", str(self.folder), *options]
        command = [sys.executable, "-m", *program, *train]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._processes.append(process)
        return process

    def finish(self, *options: str) -> str:
        process = self.start(*options)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    def signalled(
        self, number: signal.Signals, phase: str, step: int, *options: str
    ) -> subprocess.CompletedProcess[str]:
        """Get the signal at the very moment when the run enters ``phase`` of ``step``, and end."""
        process = self.start(*options, program=dying(number, phase, step))
        output, _ = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, output)

    def die(self, phase: str, step: int, *options: str) -> None:
        """Be killed as the run enters ``phase`` of ``step``."""
        died = self.signalled(signal.SIGKILL, phase, step, *options)
        assert died.returncode == -signal.SIGKILL, died.stdout

    def events(self) -> list[dict[str, Any]]:
        lines = [
            line
            for path in sorted((self.folder / "spool").glob("*.jsonl"))
            for line in path.read_bytes().split(b"\n")[:-1]
        ]
        return [json.loads(line) for line in lines]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["kind"] == kind]

    def wait_for(self, process: subprocess.Popen[str], condition: Callable[[list[dict[str, Any]]], Any]) -> Any:
        deadline = time.monotonic() + 500
        while not (found := condition(self.events())):
            assert process.poll() is None, process.stdout and process.stdout.read()
            assert time.monotonic() < deadline, self.events()[-3:]
            time.sleep(0.01)
        return found

    def weights(self, step: int) -> bytes:
        return (self.folder / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors").read_bytes()

    def state(self, step: int) -> dict[str, Any]:
        return json.loads((self.folder / "checkpoints" / f"step-{step:06d}" / "state.json").read_bytes())

    def lineage(self) -> list[dict[str, Any]]:
        """The events that still count: those of later steps are void when an attempt starts from below them."""
        kept: list[dict[str, Any]] = []
        for event in self.events():
            if event["kind"] == "started":
                kept = [
                    trajectory
                    for trajectory in kept
                    if _still_counts(trajectory, event["from_step"], event["from_cold_start_step"])
                ]
            kept.append(event)
        return kept


def step_of(trajectory: dict[str, Any]) -> int:
    """The step for which it was sampled; of an evaluation the finished steps."""
    return trajectory["sampled_at_version"] + (trajectory["purpose"] == "train")


def _still_counts(event: dict[str, Any], from_step: int, from_cold_start_step: int) -> bool:
    match event["kind"]:
        case "trajectory":
            return step_of(event["trajectory"]) <= from_step
        case "metric" if "sft/loss" in event["values"]:
            return event["step"] <= from_cold_start_step
        case "metric":
            return event["step"] <= from_step
        case _:
            return True
