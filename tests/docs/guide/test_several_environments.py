"""docs/guide/several-environments.md: the run on the page, in one process and over Ray, killed and gone on with."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from engine.environments.registry import environment_for
from engine.spec.run import RunSpec
from tests.engine.environments.terminal.tasks import write_task
from tests.engine.trainings import Training

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/guide/several-environments.md").read_text()
[RUN] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
SMALL = """
prompts_per_step = 6
group_size = 2
minibatch_trajectories = 4
checkpoint_every = 1
[evaluation]
tasks = 6
interim_tasks = 3
every = 0
[resources]
threads = 1
sandboxes = 6
kv_slots = 8
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("copy", "copy-again", "once-more"):
        write_task(tmp_path / "tasks", name)
    text = RUN.replace('tasks = "tasks", heldout_share = 0', f'tasks = "{tmp_path}/tasks", heldout_share = 0.4')
    small = "[model]\nlayers = 1\nhidden_size = 32\nheads = 2\nkv_heads = 1\nhead_dim = 16\nintermediate_size = 64\n"
    (tmp_path / "mixed.toml").write_text(text.replace("[model]\n", small) + SMALL)
    return tmp_path / "mixed.toml"


def parts_played(events: list[dict[str, Any]]) -> dict[str, str]:
    """The part of each trajectory."""
    return {
        event["trajectory"]["id"]: event["trajectory"]["task"]["part"]
        for event in events
        if event["kind"] == "trajectory"
    }


@pytest.mark.soak  # test_mixture.py draws and measures parts, test_resume.py goes on
@pytest.mark.parametrize("where", [["--in-process"], []], ids=["in-process", "ray"])
def test_the_run_of_the_page_goes_on_with_the_same_tasks(file: Path, tmp_path: Path, where: list[str]) -> None:
    with Training(file, tmp_path / "undisturbed") as undisturbed, Training(file, tmp_path / "killed") as killed:
        undisturbed.finish("--in-process")
        killed.die("collect", 2, *where)
        killed.finish("--resume", *where)
        assert parts_played(killed.lineage()) == parts_played(undisturbed.events())
        spec = RunSpec.model_validate(tomllib.loads(file.read_text()))
        drawn = [task.part for task in environment_for(spec.environment, spec.dataset).tasks("train")[:18]]
        groups = {trajectory.split("-")[1]: part for trajectory, part in parts_played(killed.lineage()).items()
                  if trajectory.startswith("train-")}  # fmt: skip
        assert groups == {str(number): part for number, part in enumerate(drawn)}
        assert set(drawn) == {"sums", "house", "shell"}
        reported = [event["values"] for event in killed.lineage() if event["kind"] == "metric"]
        counted = sum(
            values.get(f"part/{part}/groups", 0) for values in reported for part in ("sums", "house", "shell")
        )
        assert counted == 18
        assert {"part/sums/reward", "part/house/turns", "eval/part/sums/success_greedy"} <= {
            key for values in reported for key in values
        }
        assert killed.weights(3) == undisturbed.weights(3)
