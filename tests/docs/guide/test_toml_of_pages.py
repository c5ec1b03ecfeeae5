"""The TOML of pages whose runs are trained in ``./dev test soak`` is that of runs."""

import re
import tomllib
from pathlib import Path

import pytest

from engine.spec.run import RunSpec

GUIDE = Path(__file__).parents[3] / "docs" / "guide"
PAGES = ("own-data", "own-model", "several-environments", "tasks-and-teachers", "terminal-tasks")


@pytest.mark.parametrize("page", PAGES)
def test_the_first_toml_of_a_page_is_a_run_and_stays_one_with_the_tables_of_each_later_one(page: str) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", (GUIDE / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    first, *later = map(tomllib.loads, blocks)
    for tables in ({}, *later):
        RunSpec.model_validate(first | tables)
