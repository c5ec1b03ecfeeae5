"""The page's files are written, learned and gone on from as the page says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guide" / "own-data.md").read_text()


def blocks(language: str) -> list[str]:
    return [str(code) for code in re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def shell(command: str, folder: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:.", "PALESTRA_HOME": str(folder / "home"), "PATH": path}
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr


def metrics(folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for line in (line for path in sorted((folder / "spool").glob("*.jsonl")) for line in path.read_text().splitlines()):
        event = json.loads(line)
        if event["kind"] == "metric":
            for name, value in event["values"].items():
                found.setdefault(name, []).append(value)
    return found


@pytest.mark.slow
@pytest.mark.soak  # test_stages.py goes through such stages and then to RL
@pytest.mark.timeout(900)
def test_the_run_of_the_page_learns_its_files_and_another_recovers_from_it(tmp_path: Path) -> None:
    [code], [train], [run, recovery] = blocks("python"), blocks("sh"), blocks("toml")
    (tmp_path / "data.py").write_text(code)
    (tmp_path / "run.toml").write_text(run)
    shell('python data.py; python -m engine make-model "$PALESTRA_HOME/models/tiny"', tmp_path)
    shell(train, tmp_path)
    learned = metrics(tmp_path / "run")
    assert learned["sft/loss"][-1] < learned["sft/loss"][0]
    assert len(learned["sft/validation_loss"]) == 3, "after steps 2, 4 and 6 of the second stage"
    assert len(learned["train/reward"]) == 1
    parts = re.compile(r"^\[model\].*?(?=^\[resources\])", re.MULTILINE | re.DOTALL)
    again = parts.sub(recovery.replace('"run"', f'"{tmp_path}/run"') + "\n", run).replace(
        "[dataset]", "[environment.sandbox]\nsnapshots = true\n[dataset]"
    )
    (tmp_path / "recovery.toml").write_text(again.replace("from-text-to-rl", "recovery"))
    shell("python -m engine train recovery.toml --in-process --run-dir recovery", tmp_path)
    recovered = metrics(tmp_path / "recovery")
    assert "sft/loss" not in recovered
    assert {"train/repairs_shallow", "train/repairs_deep"} <= recovered.keys()
