"""docs/guide/own-algorithm.md: the estimator as it stands on the page, in a copy of the engine with its one entry."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guide" / "own-algorithm.md"

SCRIPT = """
from engine.cluster.members import learner_for
from engine.spec.recipe import Recipe
from engine.spec.run import RunSpec
from engine.training.advantages import token_advantages
from tests.engine.groups import grouped
from tests.engine.training.cast import learned, rollouts, run_spec, trajectory, turn
from webapp.experiments.schema import asks_of

spec = run_spec({"credit": {"kind": "median", "weight": 2.0}})
assert type(spec.recipe.credit).__name__ == "Median"
assert "median" in RunSpec.model_json_schema()["$defs"]["Recipe"]["properties"]["credit"]["discriminator"]["mapping"]
offered = asks_of(Recipe)["credit"].models["median"]
assert "outlier" in offered.__doc__
assert "multiplied" in offered.model_fields["weight"].description

group = [trajectory(turn([1], [20, 21]), reward=reward, member=i) for i, reward in enumerate((0.0, 0.5, 9.0))]
assert token_advantages(spec.recipe.credit, grouped(group), step=1) == [[[-1.0, -1.0]], [[0.0, 0.0]], [[17.0, 17.0]]]

learner = learner_for(spec)
assert learned(learner, grouped(rollouts()))["updates"] == 2

try:
    lonely = {"prompts_per_step": 4, "group_size": 1, "minibatch_trajectories": 4}
    run_spec({"credit": {"kind": "median"}}, schedule=lonely)
except ValueError as error:
    assert "median compares the rollouts of a group" in str(error)
else:
    raise AssertionError("a group of one was taken")
"""


@pytest.fixture
def engine_with_the_estimator(tmp_path: Path) -> Path:
    module, entry = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for room in ("engine", "sandboxes", "webapp", "tests"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "engine" / "spec" / "median.py").write_text(module)
    credit = tmp_path / "engine" / "spec" / "credit.py"
    imported, union = entry.strip().split("\n\n")
    text, count = re.subn(r"^Credit = .*$", union, credit.read_text(), flags=re.MULTILINE)
    assert count == 1
    credit.write_text(text.replace("from engine.spec.judge", f"{imported}\nfrom engine.spec.judge", 1))
    return tmp_path


def test_one_module_and_one_entry_are_all_that_an_estimator_takes(engine_with_the_estimator: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=engine_with_the_estimator, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_the_union_on_the_page_is_the_one_in_the_code_and_the_new_name() -> None:
    [page] = re.findall(r"^(Credit = .*) \| Median$", PAGE.read_text(), re.MULTILINE)
    assert page in (ROOT / "engine" / "spec" / "credit.py").read_text().splitlines()
