"""The page's questions are prepared, played by hand and trained on as the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guide" / "own-questions.md").read_text()


def blocks(language: str) -> list[str]:
    return [str(code) for code in re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def output(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path, "PALESTRA_HOME": str(folder / "home")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    output(["bash", "-ec", blocks("sh")[0]], folder)
    (folder / "run.toml").write_text(blocks("toml")[0])
    return folder


def test_an_episode_is_played_with_every_tool_of_the_page(folder: Path) -> None:
    assert json.loads((folder / "report.json").read_text())["rows"] == 80
    question, search, *lines = output([sys.executable, "-c", blocks("python")[0]], folder).splitlines()
    assert question == "Shelf 4: how many bolts?"
    assert search == "search: [1] Inventory of shelf 4: 12 bolts."
    assert "python: 12" in lines
    assert "stock_dozens: 1.0" in lines
    assert re.search(r"Rewards\(success=True, components=.*'length': -0.001, 'brief': 0.196", lines[-1])


@pytest.mark.slow
def test_the_run_of_the_page_is_checked_and_trained_for_three_steps(folder: Path) -> None:
    output(["bash", "-ec", blocks("sh")[1]], folder)
    events = [
        json.loads(line)
        for path in sorted((folder / "run" / "spool").glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    played = [event["trajectory"] for event in events if event["kind"] == "trajectory"]
    assert {trajectory["trained_at_step"] for trajectory in played} >= {1, 2, 3}
    answered = [trajectory["rewards"] for trajectory in played if trajectory["answer"] is not None]
    assert all({"length", "brief"} <= set(rewards) for rewards in answered)
