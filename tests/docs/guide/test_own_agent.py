"""The page's agent is checked and trained by the page's run, with less of everything."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guide" / "own-agent.md").read_text()
LESS = {
    "hidden_size = 96": "hidden_size = 32", "heads = 4": "heads = 2", "kv_heads = 2": "kv_heads = 1",
    "count = 8192": "count = 256",
    "head_dim = 24": "head_dim = 16", "intermediate_size = 256": "intermediate_size = 64",
    "steps = 450": "steps = 60", "batch_size = 64": "batch_size = 16", "\nsteps = 10": "\nsteps = 1",
    "prompts_per_step = 8": "prompts_per_step = 2", "group_size = 8": "group_size = 2",
    "minibatch_trajectories = 64": "minibatch_trajectories = 4", "tasks = 80": "tasks = 2", "tasks = 40": "tasks = 2",
}  # fmt: skip
"""What makes the page's run so small that a test can wait for it."""


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return found


@pytest.mark.slow
def test_the_pages_agent_is_checked_and_trained(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.py").write_text(block("python"))
    run = block("toml")
    for much, less in LESS.items():
        assert much in run
        run = run.replace(much, less)
    (tmp_path / "run.toml").write_text(run + "[resources]\nthreads = 1\nkv_slots = 4\nsandboxes = 2\n")
    script = block("sh").replace("python -m engine", f"{sys.executable} -m engine") + " --run-dir out"
    script = script.replace("\n --run-dir", " --run-dir")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PALESTRA_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        ["/bin/sh", "-euc", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(re.search(r"^{$.*?^}$", done.stdout, re.MULTILINE | re.DOTALL)[0])
    assert report["steps"] == 1
    spool = "".join(file.read_text("utf-8", "replace") for file in (tmp_path / "out" / "spool").rglob("*.jsonl"))
    exits = re.findall(r'"agent":{"exit":"([a-z-]+)"', spool)
    assert exits
    assert set(exits) <= {"done", "crashed"}
