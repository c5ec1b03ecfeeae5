"""What runs inside the two sandboxes of unit tests: the tests in one, the code of an answer in the other.

    python3 inside.py tests   {"tests", "responses"}  ->  report.json: the calls that are open, what passed and failed
    python3 inside.py code    {"code", "calls"}       ->  responses.jsonl: what the code returned, one call a line

A name that the tests use and do not define is a function of the answer.  Calling it gives what the code returned for
that call, or, while nobody has asked the code yet, ends the test with ``_Open``.  Only plain values cross (None, bool,
int, float, str, bytes, list, tuple, set, frozenset, dict): no object of the answer, whose ``==`` could lie, is ever in
the process that decides.  Standard library only.
"""

import ast
import builtins
import json
import os
import random
import sys
import types
from collections.abc import Callable
from typing import Any

REPORT, RESPONSES = "/work/report.json", "/work/responses.jsonl"
DEEPEST = 32
LONGEST_RESPONSE = 2**16
MODULE = "solution"
"""Tests may also import from it."""
_TAGS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class NotPlain(TypeError):
    """A value that does not cross."""


class _Open(BaseException):
    """The test needs what a call returns, and the code has not been asked yet."""


class AnswerRaised(Exception):
    """The code of the answer raised an exception that Python does not bring along, or returned nothing in time."""


def encoded(value: Any, depth: int = 0) -> Any:
    """The value as JSON.  Raises ``NotPlain``."""
    kind = type(value)
    if depth > DEEPEST:
        raise NotPlain(f"values lie more than {DEEPEST} deep in it")
    if value is None or kind in (bool, str) or (kind is int and value.bit_length() < 8192):
        return value
    if kind is float:
        return {"float": repr(value)}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is list:
        return [encoded(inner, depth + 1) for inner in value]
    if kind.__name__ in _TAGS and kind is _TAGS[kind.__name__]:
        return {kind.__name__: [encoded(inner, depth + 1) for inner in value]}
    if kind is dict:
        return {"dict": [[encoded(name, depth + 1), encoded(inner, depth + 1)] for name, inner in value.items()]}
    raise NotPlain(f"a {kind.__name__} cannot be compared by tests; return plain values")


def decoded(document: Any) -> Any:
    """Raises for what ``encoded`` never gives."""
    if isinstance(document, list):
        return [decoded(inner) for inner in document]
    if not isinstance(document, dict):
        return document
    [(tag, held)] = document.items()
    match tag:
        case "float":
            return float(held)
        case "bytes":
            return bytes.fromhex(held)
        case "dict":
            return {decoded(name): decoded(inner) for name, inner in held}
    return _TAGS[tag](decoded(inner) for inner in held)


class _Calls:
    """The calls of the answer's functions.  A call is known by its test and its number in that test."""

    def __init__(self, responses: dict[str, list[str]]) -> None:
        self._responses = responses
        self.open: list[list[Any]] = []
        self.made = 0
        self._test, self._number = 0, 0

    def begin(self, test: int) -> None:
        self._test, self._number = test, 0

    def function(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            return self._result(name, encoded(list(arguments)), encoded(keywords))

        return call

    def _result(self, name: str, arguments: Any, keywords: Any) -> Any:
        key, call = f"{self._test}.{self._number}", json.dumps([name, arguments, keywords])
        self._number += 1
        self.made += 1
        if key not in self._responses:
            self.open.append([key, call])
            raise _Open
        asked, response = self._responses[key]
        if asked != call:
            raise RuntimeError(f"{name} is called with other arguments each time the tests run")
        return _returned(json.loads(response))


def _returned(response: Any) -> Any:
    if "value" in response:
        return decoded(response["value"])
    kind = getattr(builtins, str(response["raised"]), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        raise kind(str(response.get("message", "")))
    raise AnswerRaised(f"{response['raised']}: {response.get('message', '')}")


class _Solution(types.ModuleType):
    def __init__(self, calls: _Calls) -> None:
        super().__init__(MODULE)
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._calls.function(name)


def run_tests(tests: str, responses: dict[str, list[str]]) -> dict[str, Any]:
    """The report.  ``fault``: what is wrong with the tests themselves."""
    report: dict[str, Any] = {"open": [], "passed": 0, "failed": 0, "fault": None}
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return report | {"fault": f"the tests are no Python: {error}"}
    calls = _Calls(responses)
    sys.modules[MODULE] = _Solution(calls)
    random.seed(0)
    names: dict[str, Any] = {"__name__": "tests"} | {name: calls.function(name) for name in _undefined(tree)}
    for number, (statement, is_test) in enumerate(_statements(tree)):
        calls.begin(number)
        result = _run(statement, names)
        if not is_test and result != "passed":
            if result == "open":
                break
            if not responses:
                return report | {"fault": f"line {statement.lineno} of the tests failed before any test"}
            report["failed"] += 1
            break
        if is_test and result != "open":
            report[result] += 1
    if not calls.made:
        return report | {"fault": "the tests call no function of the answer"}
    return report | {"open": calls.open}


def _run(statement: ast.stmt, names: dict[str, Any]) -> str:
    try:
        exec(compile(ast.Module([statement], []), "<tests>", "exec"), names)
    except _Open:
        return "open"
    except BaseException:  # whatever ends a test early has failed it, SystemExit included
        return "failed"
    return "passed"


def _statements(tree: ast.Module) -> list[tuple[ast.stmt, bool]]:
    """Each with whether it is a test; a function ``test_...`` is one by a call of it, after everything else."""
    plain = [(statement, _is_test(statement)) for statement in tree.body]
    functions = [
        statement.name
        for statement in tree.body
        if isinstance(statement, ast.FunctionDef) and statement.name.startswith("test_")
    ]
    return plain + [(ast.parse(f"{name}()").body[0], True) for name in functions]


def _is_test(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return any(isinstance(part, ast.Assert) for part in ast.walk(statement))


def _undefined(tree: ast.Module) -> set[str]:
    """The names that the tests read and nothing in them binds."""
    used, bound = set[str](), {*dir(builtins), "__name__", "__file__"}
    for part in ast.walk(tree):
        match part:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
    return used - bound


def run_code(code: str, calls: list[list[Any]], responses: Any) -> None:
    """Write a line to ``responses`` as soon as a call returns: what hangs costs no call before it."""
    names: dict[str, Any] = {"__name__": MODULE}
    fault = _fault_of(lambda: exec(compile(code, "<answer>", "exec"), names))
    for name, arguments, keywords in calls:
        response = fault or _response(names, name, arguments, keywords)
        line = json.dumps(response)
        if len(line) > LONGEST_RESPONSE:
            line = json.dumps({"raised": "OverflowError", "message": "the value is too large"})
        responses.write(line + "\n")
        responses.flush()


def _fault_of(run: Callable[[], object]) -> dict[str, str] | None:
    try:
        run()
    except BaseException as error:  # hostile code: whatever it raises is its result
        return {"raised": type(error).__name__, "message": str(error)[:200]}
    return None


def _response(names: dict[str, Any], name: str, arguments: Any, keywords: Any) -> dict[str, Any]:
    found: list[Any] = []
    fault = _fault_of(lambda: found.append(encoded(names[name](*decoded(arguments), **decoded(keywords)))))
    return fault or {"value": found[0]}


def _main() -> None:
    given = json.load(sys.stdin)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the end: what tests and code print is nobody's result
    if sys.argv[1] == "tests":
        report = run_tests(given["tests"], given["responses"])
        with open(REPORT, "w") as file:
            json.dump(report, file)
        return
    with open(RESPONSES, "w") as file:
        run_code(given["code"], given["calls"], file)


if __name__ == "__main__":
    _main()
