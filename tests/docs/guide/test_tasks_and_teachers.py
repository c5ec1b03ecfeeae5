"""The page's run is measured, filtered and taught as the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guide" / "tasks-and-teachers.md").read_text()


def blocks(language: str) -> list[str]:
    return [str(code) for code in re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def shell(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PALESTRA_HOME": str(folder / "home"), "PATH": path}
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.soak  # test_difficulty.py measures and filters, test_teacher.py teaches
@pytest.mark.timeout(900)
def test_the_tasks_of_the_page_are_measured_filtered_and_taught(tmp_path: Path) -> None:
    run, difficulty, teacher = blocks("toml")
    measure, train_filtered, make_teacher, train_taught = blocks("sh")
    (tmp_path / "measure.toml").write_text(run)
    (tmp_path / "filtered.toml").write_text(f"{run}\n{difficulty}")
    (tmp_path / "taught.toml").write_text(f"{run.replace('measured', 'taught')}\n{teacher}")
    assert "12 of 12 tasks are measured" in shell(measure, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "hard.jsonl").read_text().splitlines()[1:]]
    kept = sum(0 < row["successes"] < row["rollouts"] for row in rows)
    assert f"{kept} of 12 tasks are trained on" in shell(train_filtered, tmp_path)
    shell(make_teacher, tmp_path)
    assert "have an expert of the teacher's" in shell(train_taught, tmp_path)
