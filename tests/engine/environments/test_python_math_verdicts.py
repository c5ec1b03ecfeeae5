"""The rules that know the truth, on episodes in real sandboxes."""

import pytest

from engine.environments.python_math import PythonMathEnvironment
from engine.environments.python_math_problems import problem
from engine.rollout.demonstrations import DemonstrationWriter
from engine.rollout.episode import Arena, run_episode
from engine.rollout.requests import EpisodeRequest
from engine.spec.environment import PythonMath
from engine.spec.recipe import Reward
from engine.spec.run import Dataset
from engine.spec.supervised import Demonstrations
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec
from tests.engine.rollout.scripted import RENDERER, WITH_REASONING, ScriptedPolicy, answer, call

CONTEXT_TOKENS = 600


async def judged(level: int, *turns: list[int]) -> list[str]:
    environment = PythonMathEnvironment(PythonMath(levels=[level]), Dataset())
    policy = ScriptedPolicy(*turns, context_tokens=CONTEXT_TOKENS)
    async with Pool(SandboxSpec(), size=1) as sandboxes:
        arena = Arena(environment, RENDERER, policy, sandboxes, Reward(), len(turns), 64, CONTEXT_TOKENS)
        played = await run_episode(EpisodeRequest("train", 0, 0, 0, "train", 0, 1.0, 0), arena)
    assert len(played.turns) == len(turns)
    return environment.verdicts(played.task, [turn.tool_calls for turn in played.turns], played.answer)


async def test_a_part_of_the_expression_is_good_once_and_what_has_nothing_to_do_with_it_is_not():
    drawn = problem(0, "train", 0, 2)
    assert drawn.question == "62+58*42=?"
    reported = [
        (call("58*42"), "good"),
        (call("58*42"), "bad"),  # a repetition
        (call("42+1"), "bad"),  # new, and of no use
        (call("(62+58*42"), "bad"),  # an error
        (call("x=62+58*42"), "bad"),  # shows nothing
        (call("x"), "good"),
        (call("62+58*42"), "bad"),  # shows again what is known
        (answer("2498"), "good"),
    ]
    assert await judged(2, *(turn for turn, _ in reported)) == [verdict for _, verdict in reported]


async def test_a_wrong_answer_and_a_turn_without_form_are_bad():
    assert await judged(2, answer("1")) == ["bad"]
    assert await judged(2, [*call("1")[1:]]) == ["bad"]


async def test_opening_a_cell_helps_without_showing_anything():
    (a, x), (b, y), _ = problem(0, "train", 0, 4).hidden.items()
    reported = [
        (call(f'show("{a}")'), "bad"),
        (call(f'open_cell("{a}")'), "good"),
        (call(f'open_cell("{a}")'), "bad"),
        (call(f'show("{a}")'), "good"),
        (call(f'open_cell("{b}",{x})'), "bad"),
        (call(f'open_cell("{b}",\'{x}\');show("{b}")'), "good"),
        (call(f"{x}*{y}"), "good"),
        (answer(str(x * y)), "bad"),
    ]
    assert await judged(4, *(turn for turn, _ in reported)) == [verdict for _, verdict in reported]


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_every_turn_of_a_demonstrated_solution_is_good_and_every_slip_bad(level):
    environment = PythonMathEnvironment(PythonMath(levels=[level], reasoning=level == 4), Dataset())
    wanted = Demonstrations(count=150, wrong_fraction=0.0, tool_error_fraction=0.5)
    renderer = WITH_REASONING if level == 4 else RENDERER
    for demonstration in DemonstrationWriter(environment, renderer, Reward(), seed=4).demonstrations(wanted):
        slips = [turn.failed_calls > 0 for turn in demonstration.turns]
        assert environment.verdicts(
            demonstration.task, [turn.tool_calls for turn in demonstration.turns], demonstration.answer
        ) == ["bad" if slip else "good" for slip in slips]
