"""The page's files are prepared and read as the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guide" / "own-datasets.md").read_text()


def blocks(language: str) -> list[str]:
    return [str(code) for code in re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def output(command: list[str], folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_questions_of_the_page_become_a_version_that_is_read(tmp_path: Path) -> None:
    make, prepare = blocks("sh")
    inspected = json.loads(output(["bash", "-ec", make], tmp_path))
    assert inspected["mapping"]["prompt"] == "question"
    assert inspected["mapping"]["answer"] == "final_answer"
    (tmp_path / "sums" / "preparation.json").write_text(blocks("json")[0])
    output(["bash", "-ec", prepare], tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["state"], report["rows"]) == ("ready", 40)
    lines = output([sys.executable, "-c", blocks("python")[0]], tmp_path).splitlines()
    assert sum(int(line.split()[1]) for line in lines[:2]) == 40
    assert re.fullmatch(r"What is (\d+) times \1\? -> \d+ \{'level': 1\}", lines[2])
