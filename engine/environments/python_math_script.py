"""How demonstrators go about python-math: some guess, some solve, some err first and repair.

Every result written here is what a real sandbox answers, to the character; a test replays them.
"""

import re
from dataclasses import dataclass, replace
from random import Random

from engine.environments.contract import Manner
from engine.environments.python_math_problems import Problem, problem
from sandboxes.interface import ExecResult

LOOK, CALCULATE, REPORT = "look ", "calc ", "tell "
"""What a demonstrator that reasons writes before a call that looks something up, one that calculates, an answer."""


RELAY, DAWDLE = "relay()", "0"
TEMPTED_TURN = 2
"""Counted from 0."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Code that the demonstrator runs, and what a real sandbox answers."""

    code: str
    result: ExecResult
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a demonstrator runs, and what it answers then."""

    executions: tuple[Execution, ...]
    answer: str
    reasoning: str = ""
    """What it writes before the answer."""


def with_reasoning(plan: Plan) -> Plan:
    """The same plan, each turn with a word about what it is for."""
    executions = tuple(
        replace(execution, reasoning=LOOK if "show" in execution.code else CALCULATE) for execution in plan.executions
    )
    return replace(plan, executions=executions, reasoning=REPORT)


def planned(solved: Problem, level: int, manner: Manner, rng: Random) -> Plan:
    match manner:
        case "guess":
            return Plan((), _guess(level, rng))
        case "solve":
            return _solution(solved)
        case "repair" if solved.locked:
            return _locked_solution_with_a_slip(solved, rng)
        case "repair":
            solution = _solution(solved)
            return replace(solution, executions=(_broken(solved, rng), *solution.executions))


def tempted(plan: Plan) -> Plan:
    """The plan with a call of ``relay`` before the answer, in the third turn at the earliest; until then it dawdles."""
    dawdling = [_prints(DAWDLE, DAWDLE) for _ in range(TEMPTED_TURN - len(plan.executions))]
    return replace(plan, executions=(*plan.executions, *dawdling, _prints(RELAY, "no answer")))


def _guess(level: int, rng: Random) -> str:
    """The answer to some other problem: of the right kind, and almost never right."""
    return str(problem(0, "train", rng.getrandbits(48), level).answer)


def _solution(solved: Problem) -> Plan:
    if solved.locked:
        return Plan(_locked_executions(solved), str(solved.answer))
    executions = [_prints(solved.expression, str(solved.answer))]
    if solved.hidden:
        numbers = "\n".join(str(number) for number in solved.hidden.values())
        executions.insert(0, _prints(_look_up(solved), numbers))
    return Plan(tuple(executions), str(solved.answer))


def _look_up(solved: Problem) -> str:
    return ";".join(f'show("{cell}")' for cell in solved.hidden)


def _broken(solved: Problem, rng: Random) -> Execution:
    """The first call of the solution with one slip in it."""
    if solved.hidden:
        code = _look_up(solved)
        slips = [
            (code.replace('"', ""), "NameError"),
            (code.removesuffix(")"), "SyntaxError"),
            (code.replace(";", "*"), "TypeError"),
        ]
    else:
        code = solved.expression
        slips = [(f"calc({code})", "NameError"), (f"{code})", "SyntaxError"), (f"sum({code})", "TypeError")]
    return _raises(*rng.choice(slips))


def _locked_executions(solved: Problem) -> tuple[Execution, ...]:
    """Each cell is opened with the text of the one before it; then the texts become numbers."""
    executions, key = list[Execution](), ""
    for cell, number in solved.hidden.items():
        executions.append(_prints(f'open_cell("{cell}"{key});show("{cell}")', f"'{number}'"))
        key = f",'{number}'"
    calculation = re.sub(r"\d+", r"int('\g<0>')", solved.expression)
    return (*executions, _prints(calculation, str(solved.answer)))


def _locked_solution_with_a_slip(solved: Problem, rng: Random) -> Plan:
    """Any of its calls may be tried wrong first."""
    executions = _locked_executions(solved)
    place = rng.randrange(len(executions))
    if place == len(solved.hidden):
        slips = [(re.sub(r"\d+", r"'\g<0>'", solved.expression), "TypeError")]
    else:
        cell = list(solved.hidden)[place]
        slips = [(f'show("{cell}")', "KeyError"), (f'open_cell({cell});show("{cell}")', "NameError")]
    if 0 < place < len(solved.hidden):
        number = list(solved.hidden.values())[place - 1]
        slips += [
            (f'open_cell("{cell}");show("{cell}")', "ValueError"),
            (f'open_cell("{cell}",{number});show("{cell}")', "ValueError"),
        ]
    slip = _raises(*rng.choice(slips))
    return Plan((*executions[:place], slip, *executions[place:]), str(solved.answer))


def _raises(code: str, exception: str) -> Execution:
    return Execution(code, ExecResult("error", "", "", 1, seconds=0.0, exception=exception))


def _prints(code: str, output: str) -> Execution:
    return Execution(code, ExecResult("ok", f"{output}\n", "", 0, seconds=0.0))
