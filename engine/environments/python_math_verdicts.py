"""Which turns of an episode of python-math helped, told by one who knows the solution."""

import ast
import re
from collections.abc import Iterator, Sequence

from engine.environments.contract import JudgeVerdict
from engine.environments.python_math_problems import Problem
from engine.spec.trajectory import ToolCall


def verdicts(solved: Problem, calls: Sequence[Sequence[ToolCall]], *, answered_right: bool) -> list[JudgeVerdict]:
    """One verdict for each turn, of which ``calls`` holds the calls; ``answered_right`` speaks of the last turn.

    A turn is good if one of its calls is.

    A call is good if it worked, is no repetition, and either shows a number of the solution (a hidden one,
    or the value of a part of the expression) that no turn before it showed, or opens a cell.
    """
    wanted, done, judged = set(_numbers_of(solved)), set[str](), list[JudgeVerdict]()
    for number, of_turn in enumerate(calls, start=1):
        helped = [_taken_in(call, wanted, done) for call in of_turn]
        judged.append("good" if any(helped) or (answered_right and number == len(calls)) else "bad")
    return judged


def _taken_in(call: ToolCall, wanted: set[int], done: set[str]) -> bool:
    """Whether the call helped; what it did is no news from now on."""
    helped = _helps(call, wanted, done)
    if not call.failed:
        done.add(call.text.strip())
        wanted -= _shown(call)
    return helped


def _helps(call: ToolCall, wanted: set[int], done: set[str]) -> bool:
    if call.failed or call.text.strip() in done:
        return False
    return bool(_shown(call) & wanted) or "open_cell(" in call.text


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
