"""Which turns of an episode of python-math helped, told by one who knows the solution."""

import ast
import re
from collections.abc import Iterator, Sequence

from engine.environments.contract import JudgeVerdict
from engine.environments.python_math_problems import Problem
from engine.spec.trajectory import ToolCall


def verdicts(solved: Problem, calls: Sequence[ToolCall | None], *, answered_right: bool) -> list[JudgeVerdict]:
    """One verdict for each turn, of which ``calls`` holds the call; ``answered_right`` speaks of the last turn.

    A call is good if it worked, is no repetition, and either shows a number of the solution (a hidden one,
    or the value of a part of the expression) that no turn before it showed, or opens a cell.
    """
    wanted, done, judged = set(_numbers_of(solved)), set[str](), list[JudgeVerdict]()
    for number, call in enumerate(calls, start=1):
        is_right = answered_right and number == len(calls)
        judged.append("good" if is_right or (call is not None and _helps(call, wanted, done)) else "bad")
        if call is not None and call.status == "ok":
            done.add(call.arguments.strip())
            wanted -= _shown(call)
    return judged


def _helps(call: ToolCall, wanted: set[int], done: set[str]) -> bool:
    if call.status == "error" or call.arguments.strip() in done:
        return False
    return bool(_shown(call) & wanted) or "open_cell(" in call.arguments


def _shown(call: ToolCall) -> set[int]:
    return {int(number) for number in re.findall(r"-?\d+", call.output)}


def _numbers_of(solved: Problem) -> Iterator[int]:
    yield from solved.hidden.values()
    for part in ast.walk(ast.parse(solved.expression, mode="eval")):
        if isinstance(part, ast.BinOp):
            yield _value(part)


def _value(part: ast.AST) -> int:
    match part:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
    raise ValueError(f"no part of an expression of python-math: {ast.dump(part)}")
