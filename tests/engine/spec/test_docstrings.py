"""Descriptions of fields stand under them as docstrings, and are read when somebody asks."""

import subprocess
import sys
from pathlib import Path

from pydantic import Field

from engine.spec.docstrings import descriptions_of
from engine.spec.strict import Strict

ROOT = Path(__file__).parents[3]


def test_importing_the_spec_reads_no_source_of_its_models() -> None:
    """What ``inspect`` reads stands in the cache of ``linecache``."""
    code = "import linecache, engine.spec.run; print([file for file in linecache.cache if '/engine/' in file])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Inner(Strict):
    depth: int = 0


class Kept(Strict):
    first: int
    """How many,
    and of what."""
    second: int = Field(default=0, description="given")
    """not this"""
    third: Inner = Inner()
    """A table."""
    fourth: int = 0


class Changed(Kept):
    first: int = 1
    fourth: int = 0
    """Anew."""


def test_a_field_is_described_by_what_stands_under_it_unless_it_is_declared_anew() -> None:
    kept = {"first": "How many,\nand of what.", "second": "given", "third": "A table."}
    assert descriptions_of(Kept) == kept
    del kept["first"]
    assert descriptions_of(Changed) == kept | {"fourth": "Anew."}
    assert descriptions_of(Inner) == {}


def test_a_schema_has_them_also_beside_a_reference() -> None:
    properties = Changed.model_json_schema()["properties"]
    assert {name: field.get("description") for name, field in properties.items()} == {
        "first": None,
        "second": "given",
        "third": "A table.",
        "fourth": "Anew.",
    }
    assert properties["third"]["$ref"] == "#/$defs/Inner"


def test_models_within_functions_are_told_apart_and_those_without_source_have_none() -> None:
    class Kept(Strict):
        first: int = 0
        """Another."""

    assert descriptions_of(Kept) == {"first": "Another."}
    made: dict[str, type[Strict]] = {}
    exec('class Typed(Strict):\n    a: int = 0\n    """Lost."""', {"Strict": Strict, "__name__": "nowhere"}, made)
    assert descriptions_of(made["Typed"]) == {}
