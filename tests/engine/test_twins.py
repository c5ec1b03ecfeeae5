"""What stands in ``engine/algorithms`` is what runs: no function there is a second copy that only tests call."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "engine"
ALGORITHMS = sorted((ENGINE / "algorithms").glob("*.py"))
Definition = ast.FunctionDef | ast.ClassDef


def names_in(tree: ast.AST) -> set[str]:
    """Every name that the code uses."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def taken_from_algorithms(path: Path) -> set[str]:
    """What a module imports from ``engine/algorithms``, or asks of a module of it (``saar.similarity``)."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module is not None]
    modules = {alias.name for node in imports if node.module == "engine.algorithms" for alias in node.names}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    return {
        alias.name for node in imports if str(node.module).startswith("engine.algorithms.") for alias in node.names
    } | {node.attr for node in attributes if node.value.id in modules}


def definitions() -> Iterator[tuple[Path, Definition]]:
    for path in ALGORITHMS:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, Definition):
                yield path, node


def called_by_production() -> set[str]:
    """What is imported from ``engine/algorithms`` elsewhere in the engine, and what that uses in turn."""
    outside = [path for path in ENGINE.rglob("*.py") if path.parent != ENGINE / "algorithms"]
    called = set[str]().union(*map(taken_from_algorithms, outside))
    uses = {node.name: names_in(node) for _, node in definitions()}
    waiting = [name for name in uses if name in called]
    while waiting:
        new = {name for name in uses[waiting.pop()] if name in uses} - called
        called |= new
        waiting += new
    return called


CALLED = called_by_production()


@pytest.mark.parametrize(
    ("path", "name"), [pytest.param(path, node.name, id=f"{path.stem}.{node.name}") for path, node in definitions()]
)
def test_production_calls_it(path: Path, name: str) -> None:
    assert name in CALLED, f"{path.name}: nothing but tests uses {name}"
