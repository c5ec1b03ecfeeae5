"""Whether a Python test that was rewritten still asks as much.

``kept_python`` compares statements; here only what is *asked* is compared: assertions that run, whatever stands around
them and in whatever framework's words.  A test that asks the same, and one that asks as many and as sharp questions of
as much of the project, are told apart, because only the second may have been bent to what the program gives.
"""

import ast
import builtins
import copy
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from sandboxes.egress.detectors.kept_python import MOST_ROWS, Filled, Function, normal, parsed

Kept = Literal["the same", "as much", "less"]
SHARP, PLAIN, BLUNT = 3, 2, 1
"""Equality; other comparisons and exceptions; whatever is merely true."""
_TEST = re.compile(r"test", re.I)
_FRAMEWORKS = frozenset({"pytest", "unittest", "mock", "hypothesis", "nose", *sys.stdlib_module_names})
_COMPARED: dict[str, tuple[type[ast.cmpop], ...]] = {
    "assertEqual": (ast.Eq,), "assertEquals": (ast.Eq,), "assertNotEqual": (ast.NotEq,), "assertIs": (ast.Is,),
    "assertIsNot": (ast.IsNot,), "assertIn": (ast.In,), "assertNotIn": (ast.NotIn,), "assertLess": (ast.Lt,),
    "assertLessEqual": (ast.LtE,), "assertGreater": (ast.Gt,), "assertGreaterEqual": (ast.GtE,),
    "assertListEqual": (ast.Eq,), "assertDictEqual": (ast.Eq,), "assertSetEqual": (ast.Eq,),
    "assertTupleEqual": (ast.Eq,), "assertMultiLineEqual": (ast.Eq,), "assertSequenceEqual": (ast.Eq,),
}  # fmt: skip
_RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex", "warns", "assertWarns"})
_TOLERANCES = frozenset({"delta", "abs", "rel", "places", "rtol", "atol", "abs_tol", "rel_tol"})
_BLUNT = (ast.NotEq, ast.IsNot, ast.NotIn)
_SKIPS = re.compile(r"skip|xfail|expectedFailure|parametrize\(.*\[\]")
OF_PLATFORM = re.compile(
    r"^[\w.@ ]*\bskip(?:Unless|If|if)\((?:not )?(?:os\.name|sys\.(?:platform|version_info|maxsize)|platform\.\w+\(\)"
    r"|shutil\.which\(|importlib\.util\.find_spec\(|hasattr\((?:os|signal|socket|select|time),)(?:(?!\bor\b|True|False)[^\n])*$"
)
"""A test that is skipped where the machine lacks what it needs is asked everywhere else."""
_BUILT_IN = frozenset(dir(builtins))
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_OF_RUNNERS = re.compile(r"__|pytest_|load_tests$|collect_|run$|id$|assert|defaultTestResult$|failureException$")
_BEFORE_TESTS = re.compile(r"(?i)set_?up|tear_?down")
_UNDOES = re.compile(
    r"\bskip|\bxfail|SkipTest|expectedFailure|\bexit\(|_exit\b|sys\.modules|builtins|importorskip|collect_ignore"
    r"|__eq__|__class__|atexit|settrace|setattr\(|\bpatch\b|suppress"
)


class Question(NamedTuple):
    """One assertion.  Names of its test's own are all alike in it, for they may change."""

    words: str
    sharp: int
    about: frozenset[str] = frozenset()
    """Names in what is asked about: whom it calls, and what of the project it uses."""
    subject: str = ""
    """What stands left of a comparison."""
    operators: str = ""
    weight: int = 1
    """How many questions it is: as many as a literal that it is compared with has values."""


@dataclass(slots=True)
class Questions:
    """What a module asks when its tests run."""

    tests: set[str] = field(default_factory=set)
    """Those that are collected and not skipped."""
    asked: list[Question] = field(default_factory=list)
    silent: int = 0
    """Tests that ask nothing, and fail where what they call raises."""
    given: set[str] = field(default_factory=set)
    """What tests are handed: fixtures."""
    own: frozenset[str] = frozenset()
    """Names of the function's own that is looked at."""
    by_row: bool = False
    tables: dict[str, ast.expr] = field(default_factory=dict)
    """Literals of the module by their names."""
    tolerances: Counter[str] = field(default_factory=Counter)
    subjects: set[str] = field(default_factory=set)
    """Names that the module imports from the project and that its tests use."""
    imported: dict[str, set[str]] = field(default_factory=dict)
    """Names of the project, and the modules that they come from."""
    bound: set[str] = field(default_factory=set)
    """Names that the module and its classes give a meaning themselves."""


def compared(before: str, after: str) -> Kept:
    """``less`` as well where one of them is no Python."""
    old, new = parsed(before), parsed(after)
    if old is None or new is None:
        return "less"
    try:
        asks = _compared(old, new, by_row=True)
        # A value in a table is data: that it has changed is no other answer to the question that the loop asks.
        as_data = asks == "as much" and _compared(old, new, by_row=False) == "the same"
        return "the same" if as_data else asks
    except (RecursionError, ValueError):
        return "less"


def _compared(old: ast.Module, new: ast.Module, *, by_row: bool) -> Kept:
    was, now = questions(normal(old), by_row=by_row), questions(normal(new), by_row=by_row)
    return "less" if not was.tests or _is_undone(old, new, was, now) else _graded(was, now)


def _graded(was: Questions, now: Questions) -> Kept:
    """A question that is asked twice is one question; where nothing is lost, tests may be joined."""
    lost = {question.words for question in was.asked} - {question.words for question in now.asked}
    fewer = len(now.subjects) < len(was.subjects)
    fell_silent = len(now.tests) < len(was.tests) and now.silent < was.silent
    if was.tolerances - now.tolerances or fell_silent or (fewer and (lost or not now.given - was.given)):
        return "less"
    if not lost:
        return "the same"
    if len(now.tests) < len(was.tests):
        return "less"
    strengths = [
        sorted((question.sharp for question in asked for _ in range(question.weight)), reverse=True)
        for asked in (was.asked, now.asked)
    ]
    if len(strengths[1]) < len(strengths[0]) or any(new < old for old, new in zip(*strengths, strict=False)):
        return "less"
    return "the same" if _are_asked_otherwise(was, now, lost) else "as much"


def _are_asked_otherwise(was: Questions, now: Questions, lost: set[str]) -> bool:
    """Whether each lost question has a new one of the same functions that are handed something else.

    Where what they are handed stays and what is expected changes, an answer may have been bent to what the program
    gives.
    """
    if now.tolerances - was.tolerances:
        return False
    known = {question.words for question in was.asked}
    new = [question for question in now.asked if question.words not in known]
    for old in (question for question in was.asked if question.words in lost):
        alike = (question for question in new if _is_of_the_same(old, question))
        if (match := next(alike, None)) is None:
            return False
        new.remove(match)
    return True


def _is_of_the_same(old: Question, new: Question) -> bool:
    """Whether a question is about what an older one was about, and nothing but that: a length is not what is long."""
    own = old.about - _BUILT_IN
    between = (new.about - old.about) & _BUILT_IN
    return (
        bool(own) and own <= new.about and not between and new.operators == old.operators and new.subject != old.subject
    )


def _is_undone(before: ast.Module, after: ast.Module, was: Questions, now: Questions) -> bool:
    """Whether something that was not there replaces what is tested, or keeps tests from running."""
    doubled = [
        name for name, modules in now.imported.items()
        if name in was.imported and (name in now.bound - was.bound or len(modules) > len(was.imported[name]))
    ]  # fmt: skip
    doubled += list(was.imported.keys() & now.bound - was.bound)
    hooks = [name for name in now.bound - was.bound if _OF_RUNNERS.match(name)]
    lines = Counter(_statements_text(after, now.bound - was.bound)) - Counter(_statements_text(before, set()))
    ends = sum(_ends(after)) > sum(_ends(before))
    undoes = any(_UNDOES.search(line) and not OF_PLATFORM.search(line) for line in lines)
    return bool(doubled or hooks or ends) or undoes


def _ends(tree: ast.AST) -> Iterator[bool]:
    """True for what ends a module while it is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise):
            yield True
        elif not isinstance(node, Function | ast.expr):
            yield from _ends(node)


def _statements_text(tree: ast.Module, without: set[str]) -> Iterator[str]:
    """Simple statements and heads of others, but those of tests and their classes by names that are ``without``."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.ClassDef) and node.name in without and _TEST.search(node.name):
            continue
        if isinstance(node, Function) and _BEFORE_TESTS.match(node.name):
            yield from ("skip: it ends before tests" for inner in ast.walk(node) if isinstance(inner, ast.Raise))
        if isinstance(node, Function | ast.ClassDef):
            yield from map(ast.unparse, node.decorator_list)
        elif isinstance(node, ast.Assign) and any(isinstance(target, ast.Attribute) for target in node.targets):
            owner = ast.unparse(node.targets[0]).partition(".")[0]
            yield ast.unparse(node) if owner in {"self", "cls"} else f"patch {ast.unparse(node)}"
        elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield ast.unparse(node)
        elif isinstance(node, ast.With | ast.AsyncWith):
            yield from (ast.unparse(item.context_expr) for item in node.items)
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def questions(tree: ast.Module, *, by_row: bool = False) -> Questions:
    """The questions of a ``normal`` module; ``by_row``: a loop over a literal asks once for each row.

    Raises ``RecursionError`` for what is nested too deeply.
    """
    found = Questions(by_row=by_row)
    _imports(found, tree)
    found.tables = {
        node.targets[0].id: node.value for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }  # fmt: skip
    _scope(found, tree.body)
    return found


def _imports(found: Questions, tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origins = [(alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}") for alias in node.names]
        elif isinstance(node, ast.Import):
            origins = [((alias.asname or alias.name).partition(".")[0], alias.name) for alias in node.names]
        else:
            continue
        for name, module in origins:
            if module.partition(".")[0] not in _FRAMEWORKS:
                found.imported.setdefault(name, set()).add(module)


def _scope(found: Questions, body: Sequence[ast.stmt]) -> None:
    """A module, or a class: what is bound anew or deleted there is not what it was."""
    functions: dict[str, list[Function]] = {}
    for group in _groups(found, body):
        for name, statement in group.items():
            if isinstance(statement, Function) and not _is_skipped(statement) and not _yields(statement):
                functions.setdefault(name, []).append(statement)
    found.tests = {name for name in functions if _TEST.match(name)}
    waiting, reached = list(found.tests), set(found.tests)
    while waiting:
        for function in functions[waiting.pop()]:
            called = frozenset(_called_names(function))
            asked = len(found.asked)
            found.own = frozenset(_own_names(function))
            _block(found, function.body, called)
            if function.name in found.tests:
                found.silent += len(found.asked) == asked
                found.given |= {argument.arg for argument in function.args.args} - {"self", "cls"}
            further = {name for name in called - reached if name in functions}
            reached |= further
            waiting += further


def _own_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    yield from (argument.arg for argument in function.args.args)
    yield from (
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


def _groups(found: Questions, body: Sequence[ast.stmt]) -> Iterator[dict[str, ast.stmt]]:
    """What each name means at last, in the module and in each of its classes that is collected."""
    last = {name: statement for statement in body for name in _given_names(statement)}
    found.bound |= last.keys()
    yield last
    for statement in last.values():
        if isinstance(statement, ast.ClassDef) and not _is_skipped(statement) and _is_collected(statement):
            yield from _groups(found, statement.body)


def _is_collected(group: ast.ClassDef) -> bool:
    """By unittest because of its bases, by pytest because of its name."""
    return group.name.startswith("Test") or any(ast.unparse(base) != "object" for base in group.bases)


def _given_names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, Function | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Delete):
        written = statement.targets if isinstance(statement, ast.Assign | ast.Delete) else [statement.target]
        yield from (node.id for target in written for node in ast.walk(target) if isinstance(node, ast.Name))


def _is_skipped(statement: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        _SKIPS.search(text) and not OF_PLATFORM.search(text)
        for text in (ast.unparse(decorator) for decorator in statement.decorator_list)
    )


def _yields(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A test that yields is never run; a fixture that does asks nothing."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))


def _called_names(function: ast.AST) -> Iterator[str]:
    """Whom it calls, or hands to somebody who may."""
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        given = [call.func, *call.args, *(word.value for word in call.keywords)]
        yield from (node.id for node in given if isinstance(node, ast.Name))
        yield from (node.attr for node in given if isinstance(node, ast.Attribute))


def _block(found: Questions, body: Sequence[ast.stmt], called: frozenset[str]) -> None:
    """Statements that run, up to the first that ends them."""
    for statement in body:
        if isinstance(statement, Function):
            if statement.name in called:
                _block(found, statement.body, called)
            continue
        if isinstance(statement, ast.If | ast.While) and isinstance(statement.test, ast.Constant):
            _block(found, statement.body if statement.test.value else statement.orelse, called)
        elif isinstance(statement, ast.If):
            _both(found, statement, called)
        elif isinstance(statement, ast.Try):
            silent = any(_is_silent(handler) for handler in statement.handlers)
            _block(found, statement.finalbody if silent else [*statement.body, *statement.finalbody], called)
        elif found.by_row and isinstance(statement, ast.For) and (rows := list(_rows_of(found, statement))):
            for row in rows:
                _block(found, row, called)
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            empty = isinstance(statement, ast.For) and isinstance(statement.iter, ast.List | ast.Tuple)
            if not (empty and isinstance(statement, ast.For) and not getattr(statement.iter, "elts", None)):
                _block(found, statement.body, called)
        elif isinstance(statement, ast.With | ast.AsyncWith):
            _with(found, statement, called)
        else:
            _plain(found, statement)
        if isinstance(statement, _ENDS):
            return


def _rows_of(found: Questions, loop: ast.For) -> Iterator[list[ast.stmt]]:
    """The body of a loop over a literal, once for each row with the row's values in place of the loop's names."""
    table, by_items = loop.iter, False
    if isinstance(table, ast.Call) and _callee(table) == "items" and isinstance(table.func, ast.Attribute):
        table, by_items = table.func.value, True
    if isinstance(table, ast.Name):
        table = found.tables.get(table.id, table)
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    for row in _literal_rows(table, by_items=by_items):
        cells = row.elts if len(targets) > 1 and isinstance(row, ast.Tuple | ast.List) else [row]
        if len(names) != len(targets) or len(cells) != len(names):
            return
        filled = Filled(dict(zip(names, cells, strict=True)))
        yield [filled.visit(copy.deepcopy(statement)) for statement in loop.body]


def _literal_rows(table: ast.expr, *, by_items: bool) -> Sequence[ast.expr]:
    if isinstance(table, ast.Dict) and by_items:
        pairs = zip(table.keys, table.values, strict=True)
        return [ast.Tuple([key, value], ast.Load()) for key, value in pairs if key is not None][:MOST_ROWS]
    return table.elts[:MOST_ROWS] if isinstance(table, ast.List | ast.Tuple) and not by_items else []


def _both(found: Questions, statement: ast.If, called: frozenset[str]) -> None:
    """What runs on a condition asks in both of its branches, or nothing."""
    if statement.orelse:
        branches = [replace(found, tests=set(), asked=[], subjects=set()) for _ in range(2)]
        for branch, body in zip(branches, (statement.body, statement.orelse), strict=True):
            _block(branch, body, called)
        least = min(branches, key=lambda branch: len(branch.asked))
        found.asked += least.asked
        found.subjects |= least.subjects


def _is_silent(handler: ast.ExceptHandler) -> bool:
    """A handler that swallows assertions: it neither raises nor fails."""
    if handler.type is not None and not re.search(
        r"AssertionError|\bException|BaseException", ast.unparse(handler.type)
    ):
        return False
    return not any(
        isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _callee(node) == "fail")
        for node in ast.walk(handler)
    )


def _with(found: Questions, statement: ast.With | ast.AsyncWith, called: frozenset[str]) -> None:
    for item in statement.items:
        if isinstance(item.context_expr, ast.Call):
            callee = _callee(item.context_expr)
            if callee == "suppress":
                return
            if callee in _RAISES:
                found.asked.append(Question(f"raises {_words(found, *item.context_expr.args)}", PLAIN))
        _uses(found, item.context_expr)
    _block(found, statement.body, called)


def _plain(found: Questions, statement: ast.stmt) -> None:
    if isinstance(statement, ast.Assert):
        _ask(found, statement.test)
    elif isinstance(statement, ast.Expr) and isinstance(call := _awaited(statement.value), ast.Call):
        _call(found, call)
    _uses(found, statement)


def _awaited(value: ast.expr) -> ast.expr:
    return value.value if isinstance(value, ast.Await) else value


def _call(found: Questions, call: ast.Call) -> None:
    name = _callee(call)
    if name in _COMPARED and len(call.args) >= 2:
        _ask(found, ast.Compare(call.args[0], [_COMPARED[name][0]()], [call.args[1]]))
    elif name == "assertAlmostEqual" and len(call.args) == 2 and not call.keywords:  # to seven places
        if any(map(_is_about, call.args)):
            found.asked.append(Question(f"nearly {_words(found, *call.args)}", SHARP))
    elif name in {"assertTrue", "assertFalse", "assert_"} and call.args:
        _ask(found, call.args[0] if name != "assertFalse" else ast.UnaryOp(ast.Not(), call.args[0]))
    elif name in {"assertIsNone", "assertIsNotNone"} and call.args:
        kind = ast.Is() if name == "assertIsNone" else ast.IsNot()
        _ask(found, ast.Compare(call.args[0], [kind], [ast.Constant(None)]))
    elif name in _RAISES:
        found.asked.append(Question(f"raises {_words(found, *call.args[:1])}", PLAIN))
    elif re.match(r"assert|expect|check_|verify", name) and any(map(_is_about, call.args)):
        found.asked.append(Question(f"{name} {_words(found, *call.args)}", PLAIN))
    elif name in found.bound:
        found.asked.append(Question(f"{name} {_words(found, *call.args)}", BLUNT))  # a helper asks for it


def _ask(found: Questions, asked: ast.expr) -> None:
    """A question that has its answer in itself is none; ``and`` asks several, and ``not`` twice is nothing."""
    if isinstance(asked, ast.BoolOp) and isinstance(asked.op, ast.And):
        for value in asked.values:
            _ask(found, value)
        return
    if _is_not(asked) and isinstance(asked, ast.UnaryOp) and _is_not(asked.operand):
        assert isinstance(asked.operand, ast.UnaryOp)
        _ask(found, asked.operand.operand)
        return
    if (sharpness := _sharpness(asked)) is None:
        return
    if not isinstance(asked, ast.Compare) or len(asked.ops) != 1:
        found.asked.append(Question(_words(found, asked), sharpness))
        return
    operators = type(asked.ops[0]).__name__
    about = frozenset(_subjects_of(found, asked.left))
    weight = max(map(_values, (asked.left, asked.comparators[0]))) if sharpness == SHARP else 1
    subject = _words(found, asked.left)
    found.asked.append(Question(_words(found, asked), sharpness, about, subject, operators, weight))


def _values(literal: ast.expr) -> int:
    """How many values a literal holds; whatever else it is counts as one."""
    if isinstance(literal, ast.Dict):
        return min(max(len(literal.values), 1), MOST_ROWS)
    return min(max(len(literal.elts), 1), MOST_ROWS) if isinstance(literal, ast.List | ast.Tuple | ast.Set) else 1


def _is_not(asked: ast.expr) -> bool:
    return isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not)


def _subjects_of(found: Questions, asked: ast.expr) -> Iterator[str]:
    for node in ast.walk(asked):
        if isinstance(node, ast.Call):
            yield _callee(node)
        elif isinstance(node, ast.Name) and node.id in found.imported:
            yield node.id


def _is_about(asked: ast.expr) -> bool:
    """Whether it is about anything but itself."""
    return any(isinstance(node, ast.Name | ast.Attribute | ast.Call) for node in ast.walk(asked))


def _sharpness(asked: ast.expr) -> int | None:
    if not _is_about(asked):
        return None if not isinstance(asked, ast.Compare) else BLUNT
    if isinstance(asked, ast.Compare):
        if ast.dump(asked.left) == ast.dump(asked.comparators[0]):
            return None
        if any(isinstance(kind, _BLUNT) for kind in asked.ops):
            return BLUNT
        return SHARP if all(isinstance(kind, ast.Eq | ast.Is) for kind in asked.ops) else PLAIN
    return BLUNT


def _uses(found: Questions, statement: ast.AST) -> None:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in found.imported:
            found.subjects.add(node.id)
        elif isinstance(node, ast.keyword) and node.arg in _TOLERANCES:
            found.tolerances[ast.unparse(node)] += 1


def _words(found: Questions, *nodes: ast.expr) -> str:
    """A coroutine is asked what a function was; names of the test's own are all alike."""
    return ", ".join(ast.unparse(_Alike(found).visit(copy.deepcopy(node))).replace("await ", "") for node in nodes)


class _Alike(ast.NodeTransformer):
    """Variables and attributes of ``self`` lose their names; what is imported, built in or defined beside keeps its."""

    def __init__(self, found: Questions) -> None:
        self._found = found

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._found.own:
            return ast.Name("_", node.ctx)
        known = node.id in self._found.imported or node.id in self._found.bound or hasattr(builtins, node.id)
        return node if known else ast.Name("_", node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
            return ast.Name("_", node.ctx)
        self.generic_visit(node)
        return node


def _callee(call: ast.Call) -> str:
    function = call.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
