"""The page's run measures a checkpoint of another run, as the page says; only its numbers are made smaller."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.trainings import RUN

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guide" / "evaluating.md").read_text()


def train(text: str, name: str, folder: Path) -> dict[str, Any]:
    (folder / f"{name}.toml").write_text(text)
    subprocess.run(
        [sys.executable, "-m", "engine", "train", f"{name}.toml", "--in-process", "--run-dir", name,
         "--json", f"{name}.json"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT), "PALESTRA_HOME": str(folder)}, check=True,
        capture_output=True, timeout=900,
    )  # fmt: skip
    return dict(json.loads((folder / f"{name}.json").read_text()))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_run_of_the_page_measures_a_checkpoint(tmp_path: Path) -> None:
    trained = train(RUN.replace("steps = 5\n", "steps = 1\n"), "my-run", tmp_path)
    [run] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    smaller = run.replace("step = 40", "step = 1").replace("my-run", str(tmp_path / "my-run")) + (
        "interim_tasks = 8\n[environment]\nlevels = [1]\n[resources]\nthreads = 1\nkv_slots = 16\nsandboxes = 4\n"
    )
    smaller = smaller.replace("tasks = 510", "tasks = 8")
    summary = train(smaller, "measured", tmp_path)
    report = summary["evaluation"]
    assert (report["tasks"], report["sampled"]["episodes"], list(report["pass_at"])) == (8, 64, ["1", "2", "4", "8"])
    assert report["greedy"]["success"] == trained["success_greedy"]["after"]
    assert list((tmp_path / "measured" / "checkpoints").iterdir()) == []
