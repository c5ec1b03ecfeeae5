"""docs/guide/own-algorithm.md: the estimators as they stand on the page, with their entries in copies of the engine."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guide" / "own-algorithm.md"

COMMON = """
from engine.cluster.members import learner_for
from engine.spec.docstrings import descriptions_of
from engine.spec.recipe import Recipe
from engine.spec.run import RunSpec
from engine.training.advantages import token_advantages
from engine.training.estimators.interface import Occasion
from tests.engine.groups import grouped
from tests.engine.training.cast import learned, rollouts, run_spec, trajectory, turn
from webapp.experiments.schema import asks_of

spec = run_spec({"credit": {"kind": KIND} | FIELDS})
assert spec.recipe.credit.kind == KIND
assert KIND in RunSpec.model_json_schema()["$defs"]["Recipe"]["properties"]["credit"]["discriminator"]["mapping"]
offered = asks_of(Recipe)["credit"].models[KIND]
assert PURPOSE in offered.__doc__
(field,) = FIELDS
assert MEANING in descriptions_of(offered)[field]
assert learned(learner_for(spec), grouped(rollouts()))["updates"] == 2
try:
    run_spec({"credit": {"kind": KIND}}, schedule={"prompts_per_step": 4, "group_size": 1, "minibatch_trajectories": 4})
except ValueError as error:
    assert f"{KIND} compares the rollouts of a group" in str(error)
else:
    raise AssertionError("a group of one was taken")
"""

MEDIAN = """
KIND, FIELDS, PURPOSE, MEANING = "median", {"weight": 2.0}, "outlier", "multiplied"
exec(COMMON)
group = [trajectory(turn([1], [20, 21]), reward=reward, member=i) for i, reward in enumerate((0.0, 0.5, 9.0))]
advantages = token_advantages(spec.recipe.credit, grouped(group), Occasion(1))
assert advantages == [[[-1.0, -1.0]], [[0.0, 0.0]], [[17.0, 17.0]]], advantages
"""

BLAME = """
from engine.spec.trajectory import ToolCall
KIND, FIELDS, PURPOSE, MEANING = "blame", {"penalty": 0.25}, "whose call failed", "failed call costs"
exec(COMMON)

def called(status):
    call = ToolCall(name="code", arguments={}, output="", status=status, seconds=0.0)
    return turn([1], [20, 21]).model_copy(update={"tool_calls": [call]})

won = trajectory(turn([1], [9], prefilled=True), called("error"), called("ok"), reward=1.0, member=0)
lost = trajectory(called("ok"), turn([8], [22]), reward=0.0, member=1)
advantages = token_advantages(spec.recipe.credit, grouped([won, lost]), Occasion(1))
assert advantages == [[[0.0], [0.25, 0.25], [0.5, 0.5]], [[-0.5, -0.5], [-0.5]]], advantages
"""


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def engine_with(folder: Path, module: str, entry: str) -> Path:
    """A copy of the engine with the page's module beside the others, and its entry made."""
    for room in ("engine", "sandboxes", "webapp", "tests"):
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    imported, union = entry.strip().split("\n\n")
    name = imported.split()[1].rpartition(".")[2]
    (folder / "engine" / "spec" / f"{name}.py").write_text(module)
    credit = folder / "engine" / "spec" / "credit.py"
    text, count = re.subn(r"^Credit = .*$", union, credit.read_text(), flags=re.MULTILINE)
    assert count == 1
    credit.write_text(text.replace("from engine.spec.judge", f"{imported}\nfrom engine.spec.judge", 1))
    return folder


@pytest.mark.parametrize(("number", "script"), [(0, MEDIAN), (1, BLAME)], ids=["of a group", "turn by turn"])
def test_one_module_and_one_entry_are_all_that_an_estimator_takes(tmp_path: Path, number: int, script: str) -> None:
    module, entry = blocks()[2 * number : 2 * number + 2]
    folder = engine_with(tmp_path, module, entry)
    code = f"COMMON = {COMMON!r}\n{script}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_unions_on_the_page_are_the_one_in_the_code_and_the_new_names() -> None:
    unions = re.findall(r"^(Credit = .*) \| (?:Median|Blame)$", PAGE.read_text(), re.MULTILINE)
    assert len(unions) == 2
    assert set(unions) <= set((ROOT / "engine" / "spec" / "credit.py").read_text().splitlines())


def test_the_page_shows_no_code_that_is_not_run() -> None:
    assert len(blocks()) == 4
