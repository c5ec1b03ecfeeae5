"""What the docstring under a field says of it, read from the source when somebody asks.

pydantic would read them as it makes each class: in every process that imports the spec, of which few describe a field.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import BaseModel


@cache
def descriptions_of(model: type[BaseModel]) -> Mapping[str, str]:
    """By field; a class has those of its bases, but for fields that it declares anew.

    What ``Field`` is given as its description goes first.
    """
    below: dict[str, str | None] = {}
    for part in reversed(model.__mro__):
        own = _docstrings_in(part.__module__).get(part.__qualname__, {})
        below |= {name: own.get(name) for name in inspect.get_annotations(part)}
    given = {name: info.description for name, info in model.model_fields.items()}
    return {name: text for name in given if (text := given[name] or below.get(name))}


@cache
def _docstrings_in(module: str) -> Mapping[str, Mapping[str, str]]:
    """By the qualified names of its classes; none where there is no source, as at a prompt."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}
    return dict(_classes_in(tree, ""))


def _classes_in(scope: ast.AST, prefix: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, dict(_docstrings_below(node))
            yield from _classes_in(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes_in(node, f"{prefix}{node.name}.<locals>.")
        else:
            yield from _classes_in(node, prefix)


def _docstrings_below(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
