"""How demonstrators go about python-math: some guess, some solve, some err first and repair.

Every result written here is what a real box answers, to the character; a test replays them.
"""

from random import Random

from engine.rollout.chat import Answer, Call
from engine.rollout.environments.interface import Manner, Script, ScriptedCall
from engine.rollout.environments.python_math_problems import Problem, problem
from sandboxes.interface import ExecResult


def script(solved: Problem, level: int, manner: Manner, rng: Random) -> Script:
    match manner:
        case "guess":
            return [Answer(_guess(level, rng))]
        case "solve":
            return _solution(solved)
        case "repair":
            return [_broken(solved, rng), *_solution(solved)]


def _guess(level: int, rng: Random) -> str:
    """The answer to some other problem: of the right kind, and almost never right."""
    return str(problem(0, "train", rng.getrandbits(48), level).answer)


def _solution(solved: Problem) -> Script:
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
    slip, exception = rng.choice(slips)
    return ScriptedCall(Call(slip), ExecResult("error", "", "", 1, seconds=0.0, exception=exception))


def _prints(code: str, output: str) -> ScriptedCall:
    return ScriptedCall(Call(code), ExecResult("ok", f"{output}\n", "", 0, seconds=0.0))
