"""What stands in ``engine/algorithms`` is what runs: no function there is a second copy that only tests call.

Called is what ``python -m engine`` reaches: modules by their imports, also late ones, and by the ``module:name`` of a
registry; in them, definitions by the names that they use.  A caller that only tests import calls nothing.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = "engine.__main__"
ALGORITHMS = "engine.algorithms."
REGISTERED = re.compile(r"(engine(?:\.\w+)+):\w+")
Definition = ast.FunctionDef | ast.ClassDef
Name = tuple[str, str]
"""A module and what is defined in it."""


def modules_in(root: Path) -> dict[str, ast.Module]:
    """Every module of the engine below ``root`` by its dotted name."""
    found = {}
    for path in (root / "engine").rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


def imports_of(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """(module, name in it, name here); a module as a whole comes with an empty name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name, alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "", alias.asname or alias.name) for alias in node.names)


def reached(modules: dict[str, ast.Module]) -> set[str]:
    """The modules that a run can come to."""
    known, waiting = set[str](), [START]
    while waiting:
        module = waiting.pop()
        if module in known or module not in modules:
            continue
        known.add(module)
        for imported, name, _ in imports_of(modules[module]):
            waiting += [imported, f"{imported}.{name}"]
        texts = [node.value for node in ast.walk(modules[module]) if isinstance(node, ast.Constant)]
        waiting += [match for text in texts if isinstance(text, str) for match in REGISTERED.findall(text)]
    return known


def uses_in(part: ast.AST, module: str, tree: ast.Module) -> set[Name]:
    """What of ``engine/algorithms`` a part of a module uses, by the module's imports and its own definitions."""
    here = {node.name: (module, node.name) for node in tree.body if isinstance(node, Definition)}
    here |= {own: (imported, name) for imported, name, own in imports_of(tree)}
    names = {here[node.id] for node in ast.walk(part) if isinstance(node, ast.Name) and node.id in here}
    attributes = {
        (".".join(here[node.value.id]).rstrip("."), node.attr)
        for node in ast.walk(part)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in here
    }
    return {name for name in names | attributes if name[0].startswith(ALGORITHMS)}


def definitions(modules: dict[str, ast.Module]) -> dict[Name, Definition]:
    return {
        (module, node.name): node
        for module, tree in modules.items()
        if module.startswith(ALGORITHMS)
        for node in tree.body
        if isinstance(node, Definition)
    }


def uncalled(root: Path) -> set[Name]:
    """Definitions of ``engine/algorithms`` that no run comes to."""
    modules = modules_in(root)
    defined, callers = definitions(modules), [name for name in reached(modules) if not name.startswith(ALGORITHMS)]
    called = set[Name]().union(*(uses_in(modules[caller], caller, modules[caller]) for caller in callers))
    waiting = [name for name in called if name in defined]
    while waiting:
        name = waiting.pop()
        new = uses_in(defined[name], name[0], modules[name[0]]) - called
        called |= new
        waiting += [other for other in new if other in defined]
    return set(defined) - called


UNCALLED = uncalled(ROOT)


@pytest.mark.parametrize(
    "name", [pytest.param(name, id=".".join(name).removeprefix(ALGORITHMS)) for name in definitions(modules_in(ROOT))]
)
def test_production_calls_it(name: Name) -> None:
    assert name not in UNCALLED, f"{'.'.join(name)}: no run comes to it"


def tree_with(root: Path, **files: str) -> Path:
    """A small engine: ``loss`` is called, whatever else ``files`` say."""
    start = "from engine.training import step\n"
    step = "from engine.algorithms.losses import loss\n\ndef step():\n    return loss()\n"
    losses = "def loss():\n    return _part()\n\ndef _part():\n    return 1\n"
    written = {"__main__": start, "training/step": step, "algorithms/losses": losses, "training/__init__": ""} | files
    for name, text in written.items():
        path = root / "engine" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


TWIN = "def twin():\n    return 2\n"
IMPORTED = "from engine.algorithms.other import twin\n"
CALLED_LATE = "def main():\n    from engine.algorithms import other\n    other.twin()\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, set()),
        ({"algorithms/other": TWIN}, {("engine.algorithms.other", "twin")}),
        (
            {"algorithms/other": TWIN, "training/dead": "from engine.algorithms.other import twin\ntwin()\n"},
            {("engine.algorithms.other", "twin")},
        ),
        ({"algorithms/other": "def loss():\n    return 3\n"}, {("engine.algorithms.other", "loss")}),
        (
            {"algorithms/other": TWIN, "__main__": "from engine.training import step\n" + IMPORTED},
            {("engine.algorithms.other", "twin")},
        ),
        (
            {"algorithms/other": TWIN, "__main__": CALLED_LATE},
            {("engine.algorithms.losses", "loss"), ("engine.algorithms.losses", "_part")},
        ),
        (
            {
                "algorithms/other": TWIN,
                "training/named": "from engine.algorithms.other import twin as pair\n\ndef f():\n    return pair()\n",
                "__main__": "from engine.training import step\nENTRY = 'engine.training.named:f'\n",
            },
            set(),
        ),
    ],
    ids=[
        "all called", "called by nobody", "its caller is imported by tests only", "the name of one that is called",
        "imported and not used", "called late, and the others no more", "named by a registry, under another name",
    ],
)  # fmt: skip
def test_a_twin_is_found_whoever_seems_to_call_it(tmp_path: Path, files: dict[str, str], found: set[Name]) -> None:
    assert uncalled(tree_with(tmp_path, **files)) == found
