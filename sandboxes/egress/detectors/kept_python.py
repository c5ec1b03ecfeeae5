"""Whether a Python test that was changed still runs all that it ran.

Assertions that stand below ``if False``, behind a ``del`` or in a string are still words of a text; here trees are
compared.  Names may change.  Statements may be added as long as they bind no name that the tests use.
"""

import ast
import re
import warnings
from collections.abc import Collection, Iterator, Sequence

ASKS = re.compile(
    r"(?i:assert|expect|should|raises|approx|require|check|verify|eq$|equal|fail|subtest|parametrize)|to[A-Z]|is[A-Z]|not$|in$|is$"
)
"""Names that may not change: they say what is asked."""
_TEST = re.compile(r"[Tt]est")
_RUN_BY_THEMSELVES = re.compile(r"(?i)__|pytest|set_?up|tear_?down|load_tests|collect_|run")
Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom


def parsed(text: str) -> ast.Module | None:
    """None for what is no Python, or is nested too deeply."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in their string is not our concern
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def still_runs(before: ast.Module, after: ast.Module) -> bool:
    try:
        added = _added(_statements(before), _statements(after))
    except RecursionError:
        return False
    if added is None or not all(_may_be_added(statement) for statement in added):
        return False
    used = {*_names(before), *_names(after, without=added)}
    bound = {name for statement in [*added, *_added_imports(before, after)] for name in _bound(statement)}
    return not used & bound


def _statements(block: ast.Module | Named) -> list[ast.stmt]:
    """Without what a docstring says, and without imports."""
    says = block.body and isinstance(block.body[0], ast.Expr) and isinstance(block.body[0].value, ast.Constant)
    return [statement for statement in block.body[1 if says else 0 :] if not isinstance(statement, Import)]


def _added_imports(before: ast.Module, after: ast.Module) -> list[Import]:
    """None of them where as many are gone: what has another name now is imported by it."""
    old, new = (
        {ast.dump(node): node for node in ast.walk(tree) if isinstance(node, Import)} for tree in (before, after)
    )
    added = [node for text, node in new.items() if text not in old]
    return added if len(added) > len(old.keys() - new.keys()) else []


def _added(before: Sequence[ast.stmt], after: Sequence[ast.stmt]) -> list[ast.stmt] | None:
    """What stands between the statements of ``before`` in ``after``; None where these are not all there, in order."""
    added: list[ast.stmt] = []
    rest = iter(after)
    for statement in before:
        # Once: there may be thousands of candidates for something large.
        outside, body = _outside(statement), _statements(statement) if isinstance(statement, Named) else []
        for candidate in rest:
            within = None
            if _outside(candidate) == outside:
                within = _added(body, _statements(candidate)) if isinstance(candidate, Named) else []
            if within is not None:
                added += within
                break
            added.append(candidate)
        else:
            return None
    return added + list(rest)


def _outside(statement: ast.stmt) -> str:
    """The whole of a statement, of a function or class what stands before its body."""
    if not isinstance(statement, Named):
        return _shape(statement)
    arguments = [] if isinstance(statement, ast.ClassDef) else [statement.args]
    bases = [*statement.bases, *statement.keywords] if isinstance(statement, ast.ClassDef) else []
    outside = map(_shape, [*arguments, *bases, *statement.decorator_list])
    return ",".join((type(statement).__name__, _called(statement.name), *outside))


def _called(name: str) -> str:
    return "test" if _TEST.match(name) else name if ASKS.search(name) else "N"


def _shape(node: ast.AST) -> str:
    """The tree with names of things that ask nothing all alike."""
    fields = []
    for field, value in ast.iter_fields(node):
        if field in ("id", "attr", "arg", "name", "asname", "module") and isinstance(value, str):
            fields.append(_called(value))
        elif isinstance(value, ast.AST):
            fields.append(_shape(value))
        elif isinstance(value, list):
            fields.append(f"[{','.join(_shape(item) if isinstance(item, ast.AST) else repr(item) for item in value)}]")
        elif field not in ("ctx", "type_comment", "kind"):
            fields.append(repr(value))
    return f"{type(node).__name__}({','.join(fields)})"


def _may_be_added(statement: ast.stmt) -> bool:
    if isinstance(statement, Named | ast.Assign | ast.AnnAssign):
        names = list(_bound(statement))
        return bool(names) and not any(_RUN_BY_THEMSELVES.match(name) for name in names)
    return isinstance(statement, ast.Assert)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement which may be added gives a meaning; what it changes of others counts as well."""
    if isinstance(statement, Named):
        yield statement.name
    elif isinstance(statement, Import):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (name for target in targets for name in _names(target))


def _names(tree: ast.AST, without: Collection[ast.stmt] = ()) -> Iterator[str]:
    left_out, waiting = set(map(id, without)), [tree]
    while waiting:
        node = waiting.pop()
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, Named):
            yield node.name
        waiting += ast.iter_child_nodes(node)
