"""An import path that names no environment is refused with field, value and remedy."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.environments.contract import Environment
from engine.environments.imported import UnusableEnvironment, imported
from engine.spec.foreign_environments import Imported

CODE = """
number = 7

class Fine:
    def __init__(self, size=1): self.size = size
    def tasks(self, split): return []
    def tools(self, task): return []
    def session(self, task, sandboxes): raise NotImplementedError

def made(): return Fine(size=3)

class Half:
    def tasks(self, split): return []

class Broken:
    def __init__(self): raise OSError("no such world")
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_worlds.py").write_text(CODE)
    (tmp_path / "own_faulty.py").write_text("import no_such_dependency")
    (tmp_path / "own_raising.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)


def made(path: str, **options: Any) -> Environment:
    return imported(Imported(path=path, options=options))


@pytest.mark.parametrize(("path", "size"), [("own_worlds:Fine", 1), ("own_worlds:made", 3)])
def test_a_class_or_a_function_gives_the_environment(path: str, size: int) -> None:
    assert made(path).size == size  # type: ignore[attr-defined]


def test_options_are_arguments() -> None:
    assert made("own_worlds:Fine", size=9).size == 9  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "options", "field", "reported"),
    [
        (
            "no_such_module:X",
            {},
            "environment.path",
            "there is no module 'no_such_module'; put its folder on",
        ),
        ("own_worlds.inner:X", {}, "environment.path", "there is no module 'own_worlds.inner'"),
        ("own_faulty:X", {}, "environment.path", "importing own_faulty raised ModuleNotFoundError"),
        ("own_raising:X", {}, "environment.path", "importing own_raising raised ZeroDivisionError"),
        ("own_worlds:Fin", {}, "environment.path", "own_worlds has no Fin; name a class"),
        ("own_worlds:number", {}, "environment.path", "number cannot be called"),
        ("own_worlds:Half", {}, "environment.path", "a Half is no environment: it has no method tools, session"),
        ("own_worlds:Broken", {}, "environment.path", "calling own_worlds:Broken raised OSError: no such world"),
        ("own_worlds:Fine", {"colour": 1}, "environment.options", "does not take them"),
    ],
)
def test_what_is_no_environment_is_named_with_its_remedy(
    path: str, options: dict[str, Any], field: str, reported: str
) -> None:
    with pytest.raises(UnusableEnvironment) as refused:
        made(path, **options)
    problem = refused.value.problem
    assert problem.field == field
    assert problem.value == (path if field == "environment.path" else options)
    assert reported in f"{problem.message}; {problem.remedy}"


@pytest.mark.parametrize("path", ["module", "module:", ":Name", "a b:Name", "module:Name()", "../module:Name"])
def test_what_is_no_import_path_is_no_spec(path: str) -> None:
    with pytest.raises(ValidationError):
        Imported(path=path)
