"""A team's own model through the whole service: imported, trained as a Ray job, promoted, and trained further."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.models.folder import opened_folder
from tests.end_to_end.stack import ROOT, Stack, small_spec

pytestmark = [pytest.mark.stack, pytest.mark.slow]

STAGE = {"data": {"kind": "demonstrations", "count": 16}, "steps": 2, "batch_size": 4}


def run_of_version(name: str, version: str, **model: Any) -> dict[str, Any]:
    spec = small_spec(name, steps=1, prompts_per_step=2, group_size=2, minibatch_trajectories=4)
    environment = {"id": "python-math", "levels": [1], "max_turns": 2, "max_turn_tokens": 24}
    return spec | {
        "environment": environment,
        "dataset": {"train_tasks": 50, "heldout_tasks": 8},
        "model": {"kind": "pretrained", "catalog": version, "context_tokens": 384} | model,
        "recipe": {"preset": "grpo", "stages": [STAGE]},
        "resources": {"threads": 1, "kv_slots": 4, "sandboxes": 2},
        "evaluation": {"every": 0, "tasks": 2, "interim_tasks": 2},
    }


def make_model(stack: Stack, folder: Path) -> None:
    command = [sys.executable, "-m", "engine", "make-model", str(folder)]
    made = subprocess.run(command, cwd=ROOT, env=os.environ | stack.environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


def until_ready(stack: Stack, version: dict[str, Any]) -> dict[str, Any]:
    address = f"/model-versions/{version['id']}"
    stack.until("the version is stored", lambda: stack.ask("GET", address)["state"] not in ("importing", "checking"))
    stored = stack.ask("GET", address)
    assert stored["state"] == "ready", stored
    return stored


def succeeded(stack: Stack, spec: dict[str, Any]) -> str:
    run_id = stack.launch(spec)
    run = stack.until_ended(run_id)
    assert run["state"] == "succeeded", run
    return run_id


def test_a_version_is_imported_trained_promoted_and_trained_further(stack: Stack) -> None:
    make_model(stack, stack.home / "imports" / "tiny")
    imported = until_ready(stack, stack.ask("POST", "/model-imports", json={"name": "tiny", "folder": "tiny"}))

    first = succeeded(stack, run_of_version("own model", "tiny@1", lora={"rank": 4}))
    kinds = [event["kind"] for event in stack.events(first)]
    assert {"trajectory", "metric", "checkpoint"} <= set(kinds)
    assert kinds[-1] == "finished"
    launched = json.loads((stack.home / "runs" / first / "attempt-1.json").read_text())
    assert launched["catalog"]["sha256"] == imported["sha256"]

    promoted = until_ready(
        stack, stack.ask("POST", f"/runs/{first}/checkpoints/1/promote", json={"name": "tiny-trained"})
    )
    assert promoted["parameters"] == imported["parameters"], "the adapter is merged"
    assert promoted["sha256"] != imported["sha256"]
    assert promoted["parent"] == imported["id"]
    second = succeeded(stack, run_of_version("own model further", "tiny-trained@1"))
    trained = stack.home / "runs" / second / "checkpoints" / "step-000001" / "model"
    assert opened_folder(trained).parameters == imported["parameters"]
    uses = stack.ask("GET", f"/model-versions/{imported['id']}")
    assert [run["id"] for run in uses["ended_runs"]] == [first]
    assert uses["descendants"] == [promoted["id"]]
