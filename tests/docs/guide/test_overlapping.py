"""The TOML of the guide is a run, and the fields and metrics that it names are there."""

import re
import tomllib
from pathlib import Path

from engine.loop.generation import METRICS
from engine.spec.run import RunSpec
from engine.spec.schedule import Schedule

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/guide/overlapping.md").read_text()


def test_the_toml_of_the_guide_is_a_run_that_overlaps_and_corrects() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", GUIDE, flags=re.DOTALL)
    spec = RunSpec.model_validate(tomllib.loads("\n".join(['name = "guide"', *blocks])))
    assert spec.schedule.overlaps
    assert (spec.recipe.mismatch.mask, spec.recipe.mismatch.weight) == ("token", "token")


def test_every_field_in_the_table_is_one_of_the_schedule() -> None:
    rows = re.findall(r"^\| `(\w+)", GUIDE, flags=re.MULTILINE)
    assert len(rows) == 6
    assert set(rows) <= Schedule.model_fields.keys()


def test_every_metric_of_the_buffer_that_the_guide_names_is_told() -> None:
    named = set(re.findall(r"`((?:buffer|redundancy)/\w+)`", GUIDE))
    assert named
    assert named <= METRICS
