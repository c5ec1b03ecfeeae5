"""What the project had when the policy came and has no more: tests of that may go with it.

A test that calls a function, gives an option or imports a module that the policy took out of the product has lost its
subject.  Whoever deletes a test and leaves what it asks about in place finds no relief here.
"""

import ast
import copy
import re
from collections.abc import Iterator, Mapping

from sandboxes.egress.detectors.judged_paths import is_judge, is_of_tests
from sandboxes.egress.detectors.kept_python import Function, parsed

_SOURCE = re.compile(r"\.(?:py|[cm]?[jt]sx?|go|rs|rb|java|kt|c|h|cc|cpp|hpp|cs|php|sh|scala|swift|lua|pl)$")
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
_TEST = re.compile(r"[Tt]est")
MOST_CHARACTERS = 2**20
"""The most characters of all sources together; of what lies beyond nothing is known."""


def product_words(files: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Words of each of the product's sources, and of its path; what tests say is not among them."""
    found: dict[str, frozenset[str]] = {}
    left = MOST_CHARACTERS
    for path, text in sorted(files.items()):
        if not _SOURCE.search(path) or is_of_tests(path) or is_judge(path) or len(text) > left:
            continue
        left -= len(text)
        found[path] = frozenset((*_WORD.findall(path), *_WORD.findall(text)))
    return found


def words_of(product: Mapping[str, frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*product.values())


def subjects(test: str, gone: frozenset[str]) -> frozenset[str]:
    """What a Python test module is about of what is gone."""
    tree = parsed(test)
    return frozenset() if tree is None else gone & _mentions(tree, _imported(tree))


def without_subject(test: str, gone: frozenset[str]) -> str | None:
    """A Python test module without those of its tests that are about something ``gone``; None where all of them were.

    It is returned as it is where none was, and where it is no Python.
    """
    if not gone or (tree := parsed(test)) is None:
        return test
    left = copy.deepcopy(tree)
    names = _imported(tree)
    removed = False
    blocks: list[ast.Module | ast.ClassDef] = [left, *(node for node in left.body if isinstance(node, ast.ClassDef))]
    for block in blocks:
        kept = [part for part in block.body if not (_is_test(part) and _mentions(part, names) & gone)]
        removed |= len(kept) < len(block.body)
        block.body = kept or [ast.Pass()]
    if not removed:
        return test
    remaining = any(_is_test(node) for node in ast.walk(left))
    return ast.unparse(left) if remaining else None


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, Function) and _TEST.match(node.name) is not None


def _imported(tree: ast.Module) -> dict[str, set[str]]:
    """Names that the module imports, and the words of where each comes from."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = (alias.asname or alias.name).partition(".")[0]
                found.setdefault(name, set()).update(_WORD.findall(f"{module} {alias.name}"))
    return found


def _mentions(test: ast.AST, imported: Mapping[str, set[str]]) -> set[str]:
    """What a test is about: what it imports, attributes, keywords and texts, and no names of its own."""
    return {word for node in ast.walk(test) for word in _of_node(node, imported)}


def _of_node(node: ast.AST, imported: Mapping[str, set[str]]) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield from imported.get(node.id, ())
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.keyword) and node.arg:
        yield node.arg
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _WORD.findall(node.value)
