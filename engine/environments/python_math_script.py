"""How demonstrators go about python-math: some guess, some solve, some err first and repair.

Every result written here is what a real box answers, to the character; a test replays them.
"""

import re
from dataclasses import replace
from random import Random

from engine.environments.contract import Manner, Script, ScriptedCall
from engine.environments.python_math_problems import Problem, problem
from engine.rollout.chat import Answer, Call
from sandboxes.interface import ExecResult

LOOK, CALCULATE, SAY = "look ", "calc ", "tell "
"""What a demonstrator that reasons writes before a call that looks something up, one that calculates, an answer."""


RELAY, DAWDLE = "relay()", "0"
TEMPTED_TURN = 2
"""Counted from 0."""


def with_reasoning(told: Script) -> Script:
    """The same, each turn with a word about what it is for."""
    return [_reasoned(step) for step in told]


def _reasoned(step: ScriptedCall | Answer) -> ScriptedCall | Answer:
    if isinstance(step, Answer):
        return replace(step, reasoning=SAY)
    looks = "show" in step.call.code
    return replace(step, call=replace(step.call, reasoning=LOOK if looks else CALCULATE))


def script(solved: Problem, level: int, manner: Manner, rng: Random) -> Script:
    match manner:
        case "guess":
            return [Answer(_guess(level, rng))]
        case "solve":
            return _solution(solved)
        case "repair" if solved.locked:
            return _locked_solution_with_a_slip(solved, rng)
        case "repair":
            return [_broken(solved, rng), *_solution(solved)]


def tempted(told: Script) -> Script:
    """The same with a call of ``relay`` before the answer, in the third turn at the earliest; until then it dawdles."""
    *calls, answer = told
    calls += [_prints(DAWDLE, DAWDLE) for _ in range(TEMPTED_TURN - len(calls))]
    return [*calls, _prints(RELAY, "no answer"), answer]


def _guess(level: int, rng: Random) -> str:
    """The answer to some other problem: of the right kind, and almost never right."""
    return str(problem(0, "train", rng.getrandbits(48), level).answer)


def _solution(solved: Problem) -> Script:
    if solved.locked:
        return _locked_solution(solved)
    steps: Script = [_prints(solved.expression, str(solved.answer)), Answer(str(solved.answer))]
    if solved.hidden:
        numbers = "\n".join(str(number) for number in solved.hidden.values())
        steps.insert(0, _prints(_look_up(solved), numbers))
    return steps


def _look_up(solved: Problem) -> str:
    return ";".join(f'show("{cell}")' for cell in solved.hidden)


def _broken(solved: Problem, rng: Random) -> ScriptedCall:
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


def _locked_solution(solved: Problem) -> Script:
    """Each cell is opened with the text of the one before it; then the texts become numbers."""
    steps, key = list[ScriptedCall | Answer](), ""
    for cell, number in solved.hidden.items():
        steps.append(_prints(f'open_cell("{cell}"{key});show("{cell}")', f"'{number}'"))
        key = f",'{number}'"
    steps.append(_prints(re.sub(r"\d+", r"int('\g<0>')", solved.expression), str(solved.answer)))
    return [*steps, Answer(str(solved.answer))]


def _locked_solution_with_a_slip(solved: Problem, rng: Random) -> Script:
    """Any of its calls may be tried wrong first."""
    steps = _locked_solution(solved)
    place = rng.randrange(len(steps) - 1)
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
    return [*steps[:place], _raises(*rng.choice(slips)), *steps[place:]]


def _raises(code: str, exception: str) -> ScriptedCall:
    return ScriptedCall(Call(code), ExecResult("error", "", "", 1, seconds=0.0, exception=exception))


def _prints(code: str, output: str) -> ScriptedCall:
    return ScriptedCall(Call(code), ExecResult("ok", f"{output}\n", "", 0, seconds=0.0))
