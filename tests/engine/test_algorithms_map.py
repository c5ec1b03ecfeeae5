"""docs/algorithms.md names what there is: every preset once, and only tests, functions and metrics that exist."""

import re
from pathlib import Path

import pytest

from engine.spec.knobs import knobs_of
from engine.spec.presets import preset, preset_names
from engine.spec.resources import Resources
from engine.spec.schedule import Schedule

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "docs" / "algorithms.md").read_text()
TESTS = {path: path.read_text() for path in (ROOT / "tests" / "engine").rglob("test_*.py")}
SOURCES = list((ROOT / "engine").rglob("*.py"))
KNOBS = {knob.path for name in preset_names() for knob in knobs_of(preset(name))}


def section(title: str) -> str:
    return MAP.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_preset_stands_once_in_the_table_under_its_family_with_its_source() -> None:
    family, found = "", dict[str, tuple[str, str]]()
    for line in section("Recipes").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0].startswith("**"):
            family = cells[0].strip("*")
        elif cells and (name := re.fullmatch(r"`([\w-]+)`", cells[0])):
            assert name[1] not in found
            found[name[1]] = (family, cells[-1])
    assert found == {name: (preset(name).family, preset(name).source) for name in preset_names()}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`[\w/.]*?(test_\w+)\b(?!\.py)", MAP))))
def test_a_test_that_is_named_exists(name: str) -> None:
    assert any(re.search(rf"def {name}\(", text) for text in TESTS.values())


@pytest.mark.parametrize(("file", "name"), sorted(set(re.findall(r"(test_\w+\.py)::(test_\w+)", MAP))))
def test_a_test_stands_in_the_file_that_is_named(file: str, name: str) -> None:
    assert any(re.search(rf"def {name}\(", path.read_text()) for path in (ROOT / "tests" / "engine").rglob(file))


TABLES = {"resources": Resources, "schedule": Schedule}
"""Tables of a spec: what the map names of them are fields, and the modules of the same names have none."""
MODULES = {path.stem for path in SOURCES}
FUNCTIONS = sorted(
    (module, name)
    for module, name in set(re.findall(r"`([a-z_]+)\.((?:_?[A-Z]\w+\.)?\w+)(?:\(|`)", MAP))
    if module in MODULES and name != "py" and f"{module}.{name}" not in KNOBS and module not in ("recipe", *TABLES)
)
FIELDS = sorted(set(re.findall(rf"`({'|'.join(TABLES)})\.(\w+)`", MAP)))


@pytest.mark.parametrize(("module", "name"), FUNCTIONS)
def test_a_function_that_is_named_exists(module: str, name: str) -> None:
    files = [path.read_text() for path in SOURCES if path.stem == module]
    assert all(any(re.search(rf"(def|class) {part}\b", text) for text in files) for part in name.split("."))


@pytest.mark.parametrize(("table", "name"), FIELDS)
def test_a_field_that_is_named_exists(table: str, name: str) -> None:
    assert name in TABLES[table].model_fields


def test_every_metric_is_listed() -> None:
    listed = section("Metrics")
    code = "\n".join(path.read_text() for path in SOURCES)
    keys = set(re.findall(r'"(?:train|eval|sft|perf|judge|dpo)/([a-z_]+)"', code))
    assert {key for key in keys if key not in listed} == set()
    prefixes = set(re.findall(r'f?"(train|eval|sft|perf|judge|dpo|sil|critic)/', code))
    assert {p for p in prefixes if f"`{p}/`" not in listed} == set()
