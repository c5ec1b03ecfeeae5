"""The page's environment is one short file, and trains as the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guide" / "own-environment.md").read_text()


def block(language: str) -> str:
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(code)


def engine(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:.", "PALESTRA_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "engine", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "guessing.py").write_text(block("python"))
    (tmp_path / "guessing.toml").write_text(block("toml"))
    return tmp_path


def test_an_environment_with_two_tools_and_a_score_is_under_60_lines() -> None:
    assert len(block("python").splitlines()) < 60


@pytest.mark.slow
def test_the_environment_of_the_page_is_trained_for_three_steps(folder: Path) -> None:
    trained = engine(
        "train", "guessing.toml", "--in-process", "--run-dir", "run", "--json", "summary.json", folder=folder
    )
    assert trained.returncode == 0, trained.stderr
    assert json.loads((folder / "summary.json").read_text())["steps"] == 3
    rewards = [
        set(event["trajectory"]["rewards"])
        for path in sorted((folder / "run" / "spool").glob("*.jsonl"))
        for event in map(json.loads, path.read_bytes().splitlines())
        if event["kind"] == "trajectory"
    ]
    assert rewards
    assert all("brevity" in components for components in rewards)


def test_a_context_that_is_too_small_is_named_with_its_remedy_before_anything_starts(folder: Path) -> None:
    spec = block("toml").replace("context_tokens = 160", "context_tokens = 20")
    (folder / "guessing.toml").write_text(spec)
    checked = engine("check", "guessing.toml", folder=folder)
    assert checked.returncode != 0
    assert "model.context_tokens = 20: the longest prompt (9 tokens) and one turn (24) do not fit" in checked.stderr
    assert "use at least 33" in checked.stderr
