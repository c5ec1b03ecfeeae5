"""The forty terminal tasks through the whole service, over REST: brought, tried, published, and trained on."""

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from engine.environments.terminal.own.making import write_tasks
from engine.launch.sample_model import make_sample_model
from tests.end_to_end.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def brought(stack: Stack, folder: Path) -> dict[str, Any]:
    """The version that an upload becomes, checked as soon as it is stored."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    content = buffer.getvalue()
    files = [{"name": "tasks.tar", "bytes": len(content)}]
    upload = stack.ask("POST", "/task-uploads", json={"name": "own", "files": files})
    digest = hashlib.sha256(content).hexdigest()
    stack.ask("PUT", f"/task-uploads/{upload['id']}/files/0/parts/0?sha256={digest}", content=content)
    check = {"repeat": 1, "at_once": 2}
    return stack.ask("POST", f"/task-uploads/{upload['id']}/complete", json={"check": check})  # type: ignore[no-any-return]


def run_on(version: str) -> dict[str, Any]:
    return {
        "name": "terminal",
        "environment": {"id": "terminal", "catalog": version, "max_turns": 2, "max_turn_tokens": 32},
        "dataset": {"train_tasks": 32, "heldout_tasks": 8},
        "model": {"kind": "pretrained", "path": "tiny", "context_tokens": 2048, "microbatch_tokens": 4096},
        "recipe": {"preset": "grpo", "stages": []},
        "resources": {"threads": 1, "kv_slots": 4, "sandboxes": 2},
        "schedule": {"steps": 2, "prompts_per_step": 2, "group_size": 2, "minibatch_trajectories": 4,
                     "checkpoint_every": 2, "stall_timeout_s": 900},
        "evaluation": {"every": 0, "tasks": 1, "interim_tasks": 1},
    }  # fmt: skip


@pytest.mark.soak  # test_task_store.py has two uploaded tasks checked and published, test_session.py plays them
@pytest.mark.timeout(1500)
def test_forty_tasks_are_solved_by_their_solutions_and_by_nothing_else_and_a_model_is_trained_on_them(
    stack: Stack, tmp_path: Path
) -> None:
    write_tasks(tmp_path / "own", seed=0)
    version = brought(stack, tmp_path / "own")
    at = f"/task-set-versions/{version['id']}"
    stack.until("the check", lambda: stack.ask("GET", at)["state"] in ("stored", "failed"), timeout_s=900, every_s=1)
    checked = stack.ask("GET", at)
    assert checked["problem"] is None, checked
    assert (checked["progress"]["trials"], checked["progress"]["statuses"]) == (80, {"ok": 40})
    tasks = stack.ask("GET", f"{at}/tasks?limit=200")["items"]
    rewards = {kind: [trial["reward"] for task in tasks for trial in task["trials"] if trial["kind"] == kind]
               for kind in ("oracle", "nop")}  # fmt: skip
    assert rewards == {"oracle": [1.0] * 40, "nop": [0.0] * 40}
    assert stack.ask("POST", f"{at}/publish")["name"] == "own@1"
    make_sample_model(stack.home / "models" / "tiny", seed=0)
    run = stack.launch(run_on("own@1"))
    with pytest.raises(AssertionError, match=r"409 .*is in use"):
        stack.ask("DELETE", at)
    ended = stack.until_ended(run, timeout_s=500)
    assert (ended["state"], ended["step"]) == ("succeeded", 2), ended["failure_reason"]
    trajectories = [event["trajectory"] for event in stack.events(run) if event["kind"] == "trajectory"]
    asked = {trajectory["task"]["question"] for trajectory in trajectories}
    assert len(asked) >= 4
    assert asked <= {(tmp_path / "own" / task["name"] / "instruction.md").read_text() for task in tasks}
