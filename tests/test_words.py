"""The words that identifiers no longer use: each has one that engineers of the field know (CONTRIBUTING.md)."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BANNED = {
    "box": "sandbox",
    "boxes": "sandboxes",
    "crew": "workers",
    "doings": "actions",
    "lesson": "experience",
    "lessons": "experience",
    "poke": "notify",
    "pulse": "heartbeat",
    "ruled": "decided",
    "ruling": "review_decision",
    "rulings": "review_decisions",
    "said": "what was printed, read or reported",
    "sighting": "an entry of the security log",
    "sightings": "security_log",
    "standing": "status",
    "telling": "report",
    "told": "reported, emitted, logged",
    "whom": "the role: caller, user, owner",
}
"""Part of an identifier -> what to say in its place."""
MEANT_OTHERWISE = {
    "box": ("tests/browser/", "engine/environments/sokoban", "devtools/sglang_stubs/"),
    "boxes": ("engine/environments/sokoban", "tests/engine/environments/test_sokoban.py"),
}
"""Rectangles of a page, the crates of a world, and how pictures are scaled."""
OF_0_2 = ("migrations/", "engine/spec/files_of_0_2.py", "tests/stored_runs/")


@cache
def python_files() -> dict[str, str]:
    """Path -> code, of all that git knows."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {path: (ROOT / path).read_text() for path in listed.splitlines() if not path.startswith(OF_0_2)}


def identifiers(code: str) -> Iterator[str]:
    """Names of variables, attributes, arguments, functions, classes and modules; names of tests are sentences."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield "" if name.startswith("test_") else name
            case ast.alias(name=name, asname=other):
                yield from (*name.split("."), other or "")


def banned_in(path: str, code: str) -> set[str]:
    words = {
        word
        for name in {*identifiers(code), Path(path).stem.removeprefix("test_")}
        for word in re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
    }
    return {word for word in words & BANNED.keys() if not path.startswith(MEANT_OTHERWISE.get(word, ("-",)))}


def test_no_identifier_uses_a_word_that_was_given_up() -> None:
    found = {path: banned_in(path, code) for path, code in python_files().items()}
    assert {path: [f"{word}: {BANNED[word]}" for word in words] for path, words in found.items() if words} == {}


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("a.py", "box = 1", {"box"}),
        ("a.py", "class NamespaceBox: ...", {"box"}),
        ("a.py", "def f(*, ruled_through): ...", {"ruled"}),
        ("a.py", "import a.boxes as them", {"boxes"}),
        ("a.py", "f(told=1); g.said", {"told", "said"}),
        ("sandboxes/box.py", "", {"box"}),
        ("tests/a/test_sightings.py", "", {"sightings"}),
        ("a.py", "def test_a_box_is_told(): ...\n'box'\ninbox = viewbox = sandbox = 1", set()),
        ("engine/environments/sokoban_world.py", "boxes = 1", set()),
    ],
)
def test_each_kind_of_identifier_is_looked_at(path: str, code: str, words: set[str]) -> None:
    assert banned_in(path, code) == words


FRAGMENT = re.compile(r"\s*(?:Of|Likewise|As above|One run|In seconds)\b(?! course)")
"""How a docstring begins that is no sentence: it says something only behind the code."""


def docstrings(code: str) -> Iterator[str]:
    """Those of modules, classes and functions, and the texts below fields and constants."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield text


def test_docstrings_are_sentences() -> None:
    found = {path: [text for text in docstrings(code) if FRAGMENT.match(text)] for path, code in python_files().items()}
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_each_kind_of_docstring_is_looked_at() -> None:
    code = '"""Of a."""\nclass A:\n    """Likewise."""\n    b = 1\n    """Of b."""'
    code += '\n    def c(self):\n        """As above."""'
    assert sum(FRAGMENT.match(text) is not None for text in docstrings(code)) == 4


@pytest.mark.parametrize("name", ["Attempt", "Verdict", "Answer", "Outcome"])
def test_one_noun_has_one_meaning(name: str) -> None:
    """A class of this name said nothing: connection or run, gateway or judge, service or generator."""
    defined = [path for path, code in python_files().items() if re.search(rf"^class {name}\b", code, re.M)]
    assert defined == (["engine/launch/exit_codes.py"] if name == "Attempt" else [])
