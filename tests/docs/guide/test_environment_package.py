"""The page's commands work as it says, and a run outlives a package that crashes on purpose."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guide" / "environment-package.md").read_text()
CRASH = """
    async def reset(self) -> Sequence[Message]:
        Game.begun += 1
        if Game.begun % 25 == 0:
            os._exit(9)
"""


def engine(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PALESTRA_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "engine", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the page's first command leaves it."""
    begun = re.search(r"^python -m engine (environment new .*)$", PAGE, re.MULTILINE)
    assert begun is not None
    made = engine(*begun.group(1).split(), folder=tmp_path)
    assert made.returncode == 0, made.stderr
    return tmp_path


def test_the_check_of_a_new_package_says_what_the_page_says(folder: Path) -> None:
    checked = engine("environment", "check", "my-env", "--json", "report.json", folder=folder)
    assert checked.returncode == 0, checked.stderr
    assert "tasks: 100 train, 100 heldout; tools: below, name; 16 episodes played" in PAGE
    assert "tasks: 100 train, 100 heldout; tools: below, name; 16 episodes played" in checked.stdout
    assert checked.stdout.splitlines()[-1] == "fine"
    assert json.loads((folder / "report.json").read_text())["faults"] == []


def test_the_entry_point_and_the_knobs_of_the_page_are_those_of_the_package(folder: Path) -> None:
    entry, knobs = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert entry in (folder / "my-env" / "pyproject.toml").read_text()
    run = (folder / "my-env" / "run.toml").read_text()
    own = re.sub(r"\[environment\].*?(?=\n\[)", lambda _: knobs, run, flags=re.DOTALL)
    (folder / "my-env" / "run.toml").write_text(own)
    checked = engine("check", "run.toml", folder=folder / "my-env")
    assert checked.returncode == 0, checked.stderr


def test_what_a_run_could_not_use_is_named(folder: Path) -> None:
    module = folder / "my-env" / "src" / "my_env.py"
    module.write_text(module.read_text().replace("Random(f\"{split} {number}\")", "Random()").replace(
        "-0.01 * self.asked", "float('nan') if self.named else 0.0"
    ))  # fmt: skip
    checked = engine("environment", "check", "my-env", folder=folder)
    assert checked.returncode == 1
    assert "fault: train-0: what score gave does not fit the contract: components.brevity = nan" in checked.stdout
    (folder / "my-env" / "pyproject.toml").unlink()
    refused = engine("environment", "check", "my-env", folder=folder)
    assert refused.returncode == 2
    assert "pyproject.toml" in refused.stderr


def test_tasks_that_differ_between_processes_are_named(folder: Path) -> None:
    module = folder / "my-env" / "src" / "my_env.py"
    module.write_text(
        module.read_text().replace('Random(f"{split} {number}").randrange(self.digits)', "id(self) + id([])")
    )
    checked = engine("environment", "check", "my-env", folder=folder)
    assert "fault: train: a second process has other tasks" in checked.stdout


@pytest.mark.slow
def test_a_run_of_three_steps_outlives_a_package_that_crashes_now_and_then(folder: Path) -> None:
    module = folder / "my-env" / "src" / "my_env.py"
    code = module.read_text().replace("    async def reset(self) -> Sequence[Message]:\n", CRASH.lstrip("\n"))
    module.write_text(
        code.replace("class Game:\n", "class Game:\n    begun = 0\n\n").replace("from random", "import os\nfrom random")
    )
    trained = engine(
        "train", "run.toml", "--in-process", "--run-dir", "run", "--json", "summary.json", folder=folder / "my-env"
    )
    assert trained.returncode == 0, trained.stderr
    assert json.loads((folder / "my-env" / "summary.json").read_text())["steps"] == 3
    events = [
        event
        for path in sorted((folder / "my-env" / "run" / "spool").glob("*.jsonl"))
        for event in map(json.loads, path.read_bytes().splitlines())
    ]
    lost = sum(event["values"].get("train/environment_lost", 0) for event in events if event["kind"] == "metric")
    kept = Counter(event["trajectory"]["purpose"] for event in events if event["kind"] == "trajectory")
    assert lost > 0
    assert kept["train"] > 0
