"""The page's task is written, checked and trained on as the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guide" / "terminal-tasks.md").read_text()
TOOL_CALL = {
    "command": "cut -d, -f2 /work/table.csv | paste -sd+ | xargs -I{} python3 -c 'print({})' > /work/total.txt"
}
SMALL = """
[model]
kind = "pretrained"
path = "model"
context_tokens = 2048
microbatch_tokens = 4096
[[recipe.stages]]
data = {kind = "chat", file = "solved.jsonl"}
steps = 120
batch_size = 1
learning_rate = 3e-3
[recipe.optimizer]
learning_rate = 1e-4
[resources]
threads = 1
kv_slots = 4
sandboxes = 2
[schedule]
steps = 2
prompts_per_step = 1
group_size = 4
minibatch_trajectories = 4
checkpoint_every = 2
stall_timeout_s = 900
"""
TWO_TASKS = {
    '"own"': '"tasks"', "heldout_share = 0.2": "heldout_share = 0.5", "train_tasks = 32": "train_tasks = 1",
    "tasks = 8": "tasks = 1", "max_turns = 8": "max_turns = 3", "max_turn_tokens = 256": "max_turn_tokens = 128",
}  # fmt: skip
"""What makes the page's run so small that a test can wait for it."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PALESTRA_HOME": str(folder / "home")}
    script = script.replace("python -m engine", f"{sys.executable} -m engine")
    command = ["/bin/sh", "-euc", script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = run(blocks("sh")[0], tmp_path)
    assert written.returncode == 0, written.stderr
    return tmp_path


def test_the_task_of_the_page_is_ok(folder: Path) -> None:
    checked = run(blocks("sh")[1], folder)
    assert checked.returncode == 0, checked.stderr
    [shown] = re.findall(r"^```\n(1 tasks.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert _without_numbers(checked.stdout) == _without_numbers(shown)


def _without_numbers(table: str) -> list[str]:
    return [re.sub(r"sha256:\S+|\d+\.\d+|\s+", " ", line).replace("  ", " ").strip() for line in table.splitlines()]


def test_the_forty_tasks_are_made_as_the_page_says(folder: Path) -> None:
    made = run(blocks("sh")[2].splitlines()[0], folder)
    assert made.stdout == "40 tasks: own\n"


@pytest.mark.slow
@pytest.mark.soak  # above the page's task is checked, and test_own_questions.py trains on another page's
@pytest.mark.timeout(900)
def test_a_tiny_model_is_trained_on_the_task_of_the_page(folder: Path) -> None:
    """It learns one solution by heart, so that its rollouts really use the shell, and its tests really run."""
    assert run("python -m engine make-model home/models/model", folder).returncode == 0
    _write_solved(folder)
    [spec] = blocks("toml")
    for usual, small in TWO_TASKS.items():
        assert usual in spec
        spec = spec.replace(usual, small)
    run("cp -R tasks/sum-of-column tasks/again", folder)
    (folder / "run.toml").write_text(spec + SMALL)
    trained = run("python -m engine train run.toml --in-process --run-dir run --json summary.json", folder)
    assert trained.returncode == 0, trained.stderr[-3000:]
    assert json.loads((folder / "summary.json").read_text())["steps"] == 2
    trajectories = [
        event["trajectory"]
        for path in sorted((folder / "run" / "spool").glob("*.jsonl"))
        for event in map(json.loads, path.read_bytes().splitlines())
        if event["kind"] == "trajectory"
    ]
    assert any(_called_the_shell(trajectory) for trajectory in trajectories)
    assert any(trajectory["success"] for trajectory in trajectories)


def _called_the_shell(trajectory: dict[str, Any]) -> bool:
    turns = [turn for segment in trajectory["segments"] for turn in segment["turns"]]
    return any(call["name"] == "shell" and call["status"] == "ok" for turn in turns for call in turn["tool_calls"])


def _write_solved(folder: Path) -> None:
    from engine.environments.terminal.tools import TOOLS

    described = [{"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in TOOLS]
    tools = [{"type": "function", "function": function} for function in described]
    call = {"id": "1", "type": "function", "function": {"name": "shell", "arguments": json.dumps(TOOL_CALL)}}
    messages = [
        {"role": "user", "content": (folder / "tasks" / "sum-of-column" / "instruction.md").read_text()},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "", "is_error": False},
        {"role": "assistant", "content": "done"},
    ]
    (folder / "solved.jsonl").write_text(json.dumps({"messages": messages, "tools": tools}) + "\n")
