"""The page's model is made, checked, trained and opened as the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "guide" / "own-model.md").read_text()


def blocks(language: str) -> list[str]:
    return [str(code) for code in re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:.", "PALESTRA_HOME": str(folder / "home"), "PATH": path}
    return subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )


@pytest.mark.slow
@pytest.mark.soak  # test_evaluating.py goes on from a run's checkpoint, test_resume_pretrained.py trains LoRA
@pytest.mark.timeout(900)
def test_the_model_of_the_page_is_made_trained_opened_and_gone_on_from(tmp_path: Path) -> None:
    make, train = blocks("sh")
    run, ranks, warm = blocks("toml")
    (tmp_path / "tiny.toml").write_text(run)
    for command in (make, train):
        done = shell(command, tmp_path)
        assert done.returncode == 0, done.stderr
    assert "LoRA 8" in done.stdout
    opened = shell(f"python -c '{blocks('python')[0]}\nprint(type(model).__name__)'", tmp_path)
    assert "Qwen3ForCausalLM" in opened.stdout, opened.stderr
    model = re.compile(r"^\[model\].*?(?=^\[recipe\])", re.MULTILINE | re.DOTALL)
    again = warm.replace('run = "tiny"', f'run = "{tmp_path}/run"')
    resources = re.compile(r"^\[resources\].*?(?=^\[schedule\])", re.MULTILINE | re.DOTALL)
    warmed = resources.sub(f"{ranks}\n", model.sub(f"{again}\n", run)).replace('name = "tiny"', 'name = "warm"')
    (tmp_path / "warm.toml").write_text(warmed)
    done = shell("python -m engine train warm.toml --in-process --run-dir warm", tmp_path)
    assert done.returncode == 0, done.stderr
    shards = list((tmp_path / "warm" / "checkpoints" / "step-000001" / "shards").glob("*.distcp"))
    assert len(shards) == 2
