"""Whole runs on a Ray of their own, watched from outside by the events that they have written."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.launch.sample_model import make_sample_model

ROOT = Path(__file__).parents[3]
LONGEST_S = 1000.0
"""A server on a busy CPU takes minutes to start."""
Events = list[dict[str, Any]]

RUN = """
name = "t"
seed = 3
[environment]
id = "python-math"
levels = [1]
max_turns = 2
max_turn_tokens = 12
[model]
kind = "pretrained"
path = "tiny"
context_tokens = 384
[recipe]
preset = "grpo"
stages = []
[schedule]
steps = 4
prompts_per_step = 2
group_size = 2
minibatch_trajectories = 4
checkpoint_every = 1
[evaluation]
tasks = 2
[resources]
threads = 1
kv_slots = 8
sandboxes = 2
"""
"""Four steps of two prompts with two rollouts each; tables of resources may follow."""
TRAINED = 4 * 2 * 2


class RayRun:
    """``python -m engine train`` in ``folder``, which gets the model too."""

    def __init__(self, folder: Path, spec: str) -> None:
        self._folder = folder
        make_sample_model(folder / "tiny", seed=0)
        (folder / "run.toml").write_text(spec.replace('"tiny"', f'"{folder}/tiny"'))

    @contextmanager
    def started(self, *more: str, environment: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[bytes]"]:
        """Ended with its Ray, however the test ends."""
        command = [sys.executable, "-m", "engine", "train", "run.toml", "--run-dir", "run", *more]
        with (self._folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)

    def events(self) -> Events:
        """A line that is being written is left out."""
        files = sorted((self._folder / "run/spool").glob("*.jsonl"))
        lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, process: "subprocess.Popen[bytes]", wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline:
            if found := [event for event in self.events() if wanted(event)]:
                return found[0]
            assert process.poll() is None, self.output
            time.sleep(0.05)
        raise AssertionError(f"not written within {LONGEST_S:.0f} s; {self.output}")

    def pid_of(self, name: str) -> int:
        """The process id of an actor, as the run's log of its first attempt has it."""
        (message,) = (line for line in self.logged if line.startswith(f"{name} is process "))
        return int(message.split()[-1])

    @property
    def logged(self) -> list[str]:
        return [event["message"] for event in self.events() if event["kind"] == "log"]

    @property
    def output(self) -> str:
        return (self._folder / "output.txt").read_text()


def enters(phase: str, step: int) -> Callable[[dict[str, Any]], bool]:
    begin = {"kind": "phase", "phase": phase, "step": step, "seconds": None}
    return lambda event: begin.items() <= event.items()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def trained(events: Events) -> Counter[str]:
    """How often each rollout was trained on, by what counts: steps that a later attempt does again are void."""
    counted: list[dict[str, Any]] = []
    for event in events:
        if event["kind"] == "started":
            counted = [found for found in counted if found["trained_at_step"] <= event["from_step"]]
        elif event["kind"] == "trajectory" and event["trajectory"].get("trained_at_step"):
            counted.append(event["trajectory"])
    return Counter(rollout["id"] for rollout in counted)


def assert_each_trained_once(events: Events) -> None:
    """Four steps, each of two prompts that no other step has."""
    rollouts = trained(events)
    assert set(rollouts.values()) == {1}
    assert len(rollouts) == TRAINED
    steps = {event["trajectory"]["prompt"]: event["trajectory"]["trained_at_step"] for event in events
             if event["kind"] == "trajectory" and event["trajectory"].get("trained_at_step")}  # fmt: skip
    assert sorted(Counter(steps.values()).items()) == [(1, 2), (2, 2), (3, 2), (4, 2)]
