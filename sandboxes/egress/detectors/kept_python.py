"""Whether a Python test that was changed still runs all that it ran.

Assertions that stand below ``if False``, behind a ``del`` or in a string are still words of a text; here trees are
compared.  Names may change.  Statements may be added as long as they bind no name that the tests use.
"""

import ast
import copy
import re
import warnings
from collections.abc import Collection, Iterator, Sequence

ASKS = re.compile(
    r"(?i:assert|expect|should|raises|approx|require|check|verify|eq$|equal|fail|subtest|parametrize)|to[A-Z]|is[A-Z]|not$|in$|is$"
)
"""Names that may not change: they say what is asked."""
_ASKING = re.compile(rf"{ASKS.pattern}|[Tt]est|patch|mock|fixture")
"""Names by which a function asks, or prepares what is asked."""
_TEST = re.compile(r"[Tt]est")
_RUN_BY_THEMSELVES = re.compile(r"(?i)__|pytest|set_?up|tear_?down|load_tests|collect_|run")
MOST_ROWS = 200
"""The most rows of all tables of a module that are written out."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Named = Function | ast.ClassDef
Import = ast.Import | ast.ImportFrom


def parsed(text: str) -> ast.Module | None:
    """None for what is no Python, or is nested too deeply."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in their string is not our concern
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def normal(tree: ast.Module) -> ast.Module:
    """A copy without docstrings in which each row of a literal ``pytest.mark.parametrize`` is a test of its own."""
    plain = copy.deepcopy(tree)
    for node in ast.walk(plain):
        if isinstance(node, ast.Module | Named):
            node.body = without_docstring(node.body) or [ast.Pass()]
    left = MOST_ROWS
    for node in list(ast.walk(plain)):
        if not isinstance(node, ast.Module | ast.ClassDef):
            continue
        body: list[ast.stmt] = []
        for statement in node.body:
            rows = _rows(statement, left) if isinstance(statement, ast.FunctionDef) else None
            left -= len(rows or ())
            body += rows or [statement]
        node.body = body
    return plain


def _rows(test: ast.FunctionDef, most: int) -> list[ast.stmt] | None:
    """One test for each row, with the row's values in place of its parameters; None where that cannot be told."""
    tables = [decorator for decorator in test.decorator_list if isinstance(decorator, ast.Call)]
    if len(test.decorator_list) != 1 or not tables or len(tables[0].args) != 2:
        return None
    names, values = tables[0].args
    if ast.unparse(tables[0].func) != "pytest.mark.parametrize" or {word.arg for word in tables[0].keywords} - {"ids"}:
        return None
    try:
        written = ast.literal_eval(names)
    except ValueError:
        return None
    parameters = re.split(r"\s*,\s*", written.strip()) if isinstance(written, str) else list(written)
    stored = {node.id for node in ast.walk(test) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if not isinstance(values, ast.List | ast.Tuple) or not 0 < len(values.elts) <= most or stored & set(parameters):
        return None
    rows: list[ast.stmt] = []
    for number, row in enumerate(values.elts):
        cells = row.elts if len(parameters) > 1 and isinstance(row, ast.Tuple | ast.List) else [row]
        if len(cells) != len(parameters) or any(isinstance(cell, ast.Call) for cell in cells):
            return None
        case = copy.deepcopy(test)
        case.name = f"{test.name}_{number}" if number else test.name
        case.decorator_list = []
        case.args.args = [argument for argument in case.args.args if argument.arg not in parameters]
        rows.append(Filled(dict(zip(parameters, cells, strict=True))).visit(case))
    return rows


class Filled(ast.NodeTransformer):
    """Puts values in place of names."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._values.get(node.id, node)


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    has = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return body[1:] if has else body


def still_runs(before: ast.Module, after: ast.Module) -> bool:
    """Return whether each statement of ``before`` stands in ``after``, both ``normal``, and nothing added undoes it."""
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
    return [statement for statement in without_docstring(block.body) if not isinstance(statement, Import)]


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
    """The tree with names of things that ask nothing all alike; a value may be given by place or by name."""
    if isinstance(node, ast.Call) and _is_folded(node):
        values = [*node.args, *(word.value for word in node.keywords)]
        return f"Call({','.join(map(_shape, [node.func, *values]))})"
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


def _is_folded(call: ast.Call) -> bool:
    callee = call.func
    name = callee.attr if isinstance(callee, ast.Attribute) else callee.id if isinstance(callee, ast.Name) else "?"
    plain = all(word.arg is not None for word in call.keywords)
    return plain and not ASKS.search(name) and not any(isinstance(value, ast.Starred) for value in call.args)


def stands_in(statement: ast.stmt, tree: ast.Module) -> bool:
    """Return whether one statement of a module that is gone stands in another module."""
    try:
        return _added([statement], _statements(tree)) is not None
    except RecursionError:
        return False


def asked_by(tree: ast.Module) -> list[list[ast.stmt]]:
    """Return what a module asks: no imports, no main program, and no functions that ask nothing.

    Of a class each test is told for itself, with what stands around it, for a class may be divided; so a statement is a
    list, all of which has to stand somewhere.
    """
    statements = [statement for statement in _statements(tree) if not isinstance(statement, ast.If | ast.Pass)]
    return [_divided(statement) for statement in statements if not isinstance(statement, Named) or _asks(statement)]


def _asks(block: Named) -> bool:
    nodes = list(ast.walk(block))
    asserts = any(isinstance(node, ast.Assert) for node in nodes)
    return asserts or any(_ASKING.search(name) for node in nodes for name in _name_of(node))


def _name_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, Named):
        yield node.name
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr


def _divided(statement: ast.stmt) -> list[ast.stmt]:
    """A class once for each of its tests."""
    if not isinstance(statement, ast.ClassDef):
        return [statement]
    tests = [part for part in statement.body if isinstance(part, Function) and _TEST.match(part.name)]
    if not 1 < len(tests) <= MOST_ROWS:
        return [statement]
    around = [part for part in statement.body if part not in tests]
    return [_with_body(statement, [*around, test]) for test in tests]


def _with_body(block: ast.ClassDef, body: list[ast.stmt]) -> ast.ClassDef:
    part = copy.copy(block)
    part.body = body
    return part


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
