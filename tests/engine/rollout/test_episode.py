import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import RENDERER, TOKENIZER, TOOLS, ScriptedPolicy, answer, call

from engine.environments.python_math import PythonMathEnvironment
from engine.environments.sandbox_session import SandboxSession
from engine.environments.sokoban import SokobanEnvironment, SokobanSimulation
from engine.models.tokenizer import tokenizer_for
from engine.rollout.episode import Arena, EnvironmentFailed, run_episode
from engine.rollout.renderers.characters import CharacterRenderer
from engine.rollout.requests import EpisodeRequest
from engine.spec.environment import PythonMath, Sokoban
from engine.spec.exploration import Purification
from engine.spec.message import AssistantMessage, Message
from engine.spec.recipe import Reward
from engine.spec.run import Dataset
from sandboxes.interface import PoolClosed, SandboxLost
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

LEVEL_1, LEVEL_3 = 0, 2
"""Numbers of tasks of those levels."""


@pytest.fixture
async def sandboxes():
    async with Pool(SandboxSpec(timeout_s=0.5, memory_mib=64, output_bytes=4096), size=2) as pool:
        yield pool


def arena(policy, sandboxes, *, context_tokens=160, max_turns=5):
    environment = PythonMathEnvironment(PythonMath(), Dataset())
    return Arena(environment, RENDERER, policy, sandboxes, Reward(tool_error=-0.1), max_turns, 32, context_tokens)


def request(task=LEVEL_1, member=0, seed=11):
    return EpisodeRequest("train", 0, member, 0, "train", task, 1.0, seed)


def task_of(number):
    return PythonMathEnvironment(PythonMath(), Dataset()).tasks("train")[number]


async def test_a_right_answer_found_with_the_tool_earns_the_reward(sandboxes):
    task = task_of(LEVEL_1)
    policy = ScriptedPolicy(call(task.question.removesuffix("=?")), answer(task.answer))
    trajectory = await run_episode(request(), arena(policy, sandboxes))
    assert (trajectory.success, trajectory.reward, trajectory.stop_reason) == (True, 1.0, "answered")
    assert trajectory.rewards == {"outcome": 1.0, "tool_errors": 0.0}
    assert trajectory.turns[1].context_text == f"<output>{task.answer}</output><assistant>"
    assert trajectory.turns[0].policy_versions == [7] * len(trajectory.turns[0].token_ids)


async def test_hidden_numbers_are_looked_up_in_one_call_and_combined_in_another(sandboxes):
    task = task_of(LEVEL_3)
    first, second = (part[0] for part in task.question.split("cell ")[1:])
    looked_up = await run_episode(
        request(LEVEL_3), arena(ScriptedPolicy(call(f'show("{first}");show("{second}")'), answer("0")), sandboxes)
    )
    numbers = looked_up.tool_calls[0].output.split("\n")
    expression = (
        task.question.removesuffix("=?").replace(f"cell {first}", numbers[0]).replace(f"cell {second}", numbers[1])
    )
    policy = ScriptedPolicy(call(f'show("{first}")'), call(f'show("{second}")'), call(expression), answer(task.answer))
    trajectory = await run_episode(request(LEVEL_3), arena(policy, sandboxes))
    assert [tool_call.output for tool_call in trajectory.tool_calls] == [*numbers, task.answer]
    assert trajectory.success


async def test_what_show_returns_cannot_be_calculated_with(sandboxes):
    task = task_of(LEVEL_3)
    code = task.question.removesuffix("=?").replace("cell ", "show('").replace("*", "')*").replace("+", "')+", 1)
    assert code.count("show") == 2
    trajectory = await run_episode(request(LEVEL_3), arena(ScriptedPolicy(call(code), answer("0")), sandboxes))
    assert trajectory.tool_calls[0].error_class == "type"
    assert trajectory.turns[1].context_text == "<output>Error: TypeError</output><assistant>"


async def test_hidden_numbers_survive_a_time_out(sandboxes):
    code = task_of(LEVEL_3).question.split("cell ")[1][0].join(('show("', '")'))
    policy = ScriptedPolicy(call(code), call("while 1:0"), call(code), answer("0"))
    before, _, after = (await run_episode(request(LEVEL_3), arena(policy, sandboxes))).tool_calls
    assert before.output.isdigit()
    assert after.output == before.output


async def test_hidden_numbers_of_one_task_are_gone_in_the_next_episode_of_the_sandbox():
    async with Pool(SandboxSpec(reuse="reset"), size=1) as pool:
        await run_episode(request(LEVEL_3), arena(ScriptedPolicy(call("1"), answer("0")), pool))
        policy = ScriptedPolicy(call("show"), answer("0"))
        trajectory = await run_episode(request(LEVEL_1), arena(policy, pool))
        assert pool.stats().started == 1
    assert trajectory.tool_calls[0].error_class == "name"


@pytest.mark.parametrize(
    ("code", "error_class"),
    [
        ("1/0", "zero-division"),
        ("1 +", "syntax"),
        ("nobody", "name"),
        ("import nothing", "import"),
        ("'a'+1", "type"),
        ("int('x')", "value"),
        ("[][0]", "index"),
        ("{}['x']", "index"),
        ("raise OSError", "other"),
        ("while 1:0", "timeout"),
        ("bytearray(10**9)", "memory"),
        ("while 1:print('1'*10**6)", "output"),
        ("import os;os.abort()", "killed"),
    ],
)
async def test_a_tool_that_fails_is_an_observation_with_its_class(sandboxes, code, error_class):
    ids = [TOKENIZER.tool_open, *TOKENIZER.encode(code), TOKENIZER.tool_close]
    trajectory = await run_episode(request(), arena(ScriptedPolicy(ids, answer("0")), sandboxes))
    failed = trajectory.tool_calls[0]
    assert (failed.status, failed.error_class) == ("error", error_class)
    assert failed.output.startswith("Error: ")
    assert len(failed.output) <= 24
    assert trajectory.turns[1].context_text == f"<output>{failed.output}</output><assistant>"
    assert trajectory.rewards == {"outcome": 0.0, "tool_errors": -0.1}
    assert trajectory.stop_reason == "answered"


async def test_a_policy_that_printed_much_is_shown_little(sandboxes):
    trajectory = await run_episode(request(), arena(ScriptedPolicy(call("'9'*999"), answer("0")), sandboxes))
    assert len(trajectory.turns[1].context_ids) == 24 + 3


async def test_a_tool_cannot_write_marks_into_the_conversation(sandboxes):
    trajectory = await run_episode(request(), arena(ScriptedPolicy(call("print('</output>')"), answer("0")), sandboxes))
    assert trajectory.turns[1].context_ids[1:-2] == TOKENIZER.encode("</output>")
    assert not any(map(TOKENIZER.is_mark, trajectory.turns[1].context_ids[1:-2]))


@pytest.mark.parametrize(
    ("ids", "stop_reason"),
    [
        (TOKENIZER.encode("12") + answer("12"), "no-tool-call"),
        ([TOKENIZER.eos], "no-tool-call"),
        ([TOKENIZER.answer_open, TOKENIZER.tool_open, TOKENIZER.answer_close], "no-tool-call"),
        ([TOKENIZER.tool_open, *TOKENIZER.encode("1"), TOKENIZER.answer_close], "no-tool-call"),
        ([TOKENIZER.answer_open, *TOKENIZER.encode("1"), TOKENIZER.tool_close], "no-tool-call"),
        (TOKENIZER.encode("1" * 40), "no-tool-call"),
    ],
)
async def test_a_malformed_turn_ends_the_episode_without_reward_and_without_a_sandbox(sandboxes, ids, stop_reason):
    trajectory = await run_episode(request(), arena(ScriptedPolicy(ids), sandboxes))
    assert (trajectory.stop_reason, trajectory.answer, trajectory.reward) == (stop_reason, None, 0.0)
    assert sandboxes.stats().served == 0


EXPERIENCE = ("Use the tool.", "</EXP><answer>")


async def test_experience_is_read_before_the_question_and_the_first_turn_tells_where(sandboxes):
    reported, untold = ScriptedPolicy(call("1"), answer("1")), ScriptedPolicy(call("1"), answer("1"))
    shown = await run_episode(replace(request(), experience=EXPERIENCE), arena(reported, sandboxes))
    plain = await run_episode(request(), arena(untold, sandboxes))
    first, second = shown.turns
    start, stop = first.experience_span
    assert TOKENIZER.decode(first.context_ids[start:stop]) == "<EXP>Use the tool.\n</EXP><answer></EXP>\n"
    assert [*first.context_ids[:start], *first.context_ids[stop:]] == plain.turns[0].context_ids
    assert (second.experience_span, plain.turns[0].experience_span) == (None, None)
    assert reported.seen[next(iter(reported.seen))][: len(first.context_ids)] == first.context_ids


async def test_experience_that_leaves_no_room_ends_the_episode_as_truncated(sandboxes):
    policy = ScriptedPolicy(answer("1"))
    trajectory = await run_episode(replace(request(), experience=("x" * 160,)), arena(policy, sandboxes))
    assert (trajectory.turns, trajectory.stop_reason) == ([], "truncated")


SOKOBAN = SokobanEnvironment(Sokoban(), Dataset())
SOKOBAN_RENDERER = CharacterRenderer(tokenizer_for("sokoban"), reasoning=False)


def move(direction):
    return AssistantMessage.calling("move", {"direction": direction})


def in_sokoban(*moves):
    """No sandboxes, a context without end: what is played is a world in this process."""
    turns = [SOKOBAN_RENDERER.write(message, [SokobanEnvironment.tool]) for message in moves]
    policy = ScriptedPolicy(*turns, context_tokens=9999)
    return Arena(SOKOBAN, SOKOBAN_RENDERER, policy, None, Reward(well_formed=0.5), 64, 32, 9999, Purification())


def solution_of(task):
    return [turn.message for turn in SOKOBAN.script(SOKOBAN.tasks("train")[task], "solve", Random(0)).turns]


async def test_an_episode_ends_when_the_goal_is_reached_and_the_session_tells_success():
    moves = solution_of(0)
    trajectory = await run_episode(request(), in_sokoban(*moves, move("up")))
    assert (trajectory.stop_reason, trajectory.success, trajectory.answer) == ("done", True, None)
    assert len(trajectory.turns) == len(moves)
    assert trajectory.rewards == {"outcome": 1.0, "tool_errors": 0.0, "well_formed": 0.5}


async def test_giving_up_with_an_answer_is_no_success():
    trajectory = await run_episode(request(), in_sokoban(solution_of(0)[0], AssistantMessage("done")))
    assert (trajectory.stop_reason, trajectory.success) == ("answered", False)


async def test_an_illegal_move_is_purified_without_a_sandbox():
    first, *rest = solution_of(0)
    trajectory = await run_episode(replace(request(), purify=True), in_sokoban(first, move("sideways"), *rest))
    assert [call.text for call in trajectory.tool_calls] == [
        first.call_text,
        *[message.call_text for message in rest],
    ]
    assert (trajectory.success, trajectory.first_attempt_errors) == (True, 1)
    assert trajectory.changes[0].details["error_class"] == "illegal"


async def test_turns_are_limited(sandboxes):
    policy = ScriptedPolicy(*[call("1")] * 9)
    trajectory = await run_episode(request(), arena(policy, sandboxes, max_turns=3))
    assert (len(trajectory.turns), trajectory.stop_reason) == (3, "turn-limit")


async def test_a_full_context_ends_the_episode_as_truncated(sandboxes):
    prompt = len(RENDERER.prompt([Message("user", task_of(LEVEL_1).question)], TOOLS))
    in_a_turn = ScriptedPolicy(call("1" * 20), context_tokens=prompt + 10)
    trajectory = await run_episode(request(), arena(in_a_turn, sandboxes, context_tokens=prompt + 10))
    assert (trajectory.stop_reason, len(trajectory.turns[0].token_ids)) == ("truncated", 10)
    after_output = ScriptedPolicy(call("11111"), answer("0"))
    trajectory = await run_episode(request(), arena(after_output, sandboxes, context_tokens=prompt + 7 + 8))
    assert (trajectory.stop_reason, len(trajectory.turns)) == ("truncated", 1)
    assert trajectory.tool_calls[0].output == "11111"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, len(TOKENIZER.vocab) - 1), min_size=32, max_size=32), min_size=5, max_size=5))
def test_a_trajectory_is_token_for_token_what_the_session_saw(turns):
    """Whatever ids the policy writes, unparsable ones included, they are kept as sampled."""
    turns = [call("1+1"), [TOKENIZER.tool_open, *turns[0][:8], TOKENIZER.tool_close, *turns[1]], *turns[2:]]
    policy = ScriptedPolicy(*turns)

    async def play():
        async with Pool(SandboxSpec(timeout_s=0.5), size=1) as pool:
            return await run_episode(request(), arena(policy, pool))

    trajectory = asyncio.run(play())
    (session,) = policy.seen
    kept = [token for turn in trajectory.turns for token in (*turn.context_ids, *turn.token_ids)]
    assert kept == policy.seen[session]
    assert [len(turn.logprobs) for turn in trajectory.turns] == [len(turn.token_ids) for turn in trajectory.turns]
    assert policy.released == [session]


async def test_draws_depend_on_the_request_and_not_on_when_or_where_it_is_played(sandboxes):
    def seeds(played):
        return [request.seed for request in played.requests]

    first, again, other = (ScriptedPolicy(call("1"), answer("1")) for _ in range(3))
    await run_episode(request(), arena(first, sandboxes))
    await run_episode(request(), arena(again, sandboxes))
    await run_episode(request(seed=12), arena(other, sandboxes))
    assert seeds(first) == seeds(again)
    assert len({*seeds(first), *seeds(other)}) == 4


async def test_a_lost_sandbox_is_no_trajectory_and_the_session_is_released(sandboxes):
    class Dying:
        async def run_python(self, code, *, timeout_s=None):
            raise SandboxLost("gone")

    class DyingSandboxes:
        @asynccontextmanager
        async def acquire(self):
            yield Dying()

    policy = ScriptedPolicy(call("1"), answer("1"))
    with pytest.raises(SandboxLost):
        await run_episode(request(), arena(policy, DyingSandboxes()))
    assert len(policy.released) == 1


async def test_an_exception_of_the_environment_gets_a_name(sandboxes, monkeypatch):
    monkeypatch.setattr(SandboxSession, "score", lambda _: 1 / 0)
    policy = ScriptedPolicy(answer("1"))
    with pytest.raises(EnvironmentFailed, match="ZeroDivisionError"):
        await run_episode(request(), arena(policy, sandboxes))
    assert len(policy.released) == 1


async def test_an_exception_of_an_environments_session_gets_a_name(monkeypatch):
    playing = in_sokoban(solution_of(0)[0])
    monkeypatch.setattr(SokobanSimulation, "act", lambda *_: {}["x"])
    with pytest.raises(EnvironmentFailed, match="KeyError"):
        await run_episode(request(), playing)
    assert len(playing.generator.released) == 1


async def test_a_closed_pool_is_no_fault_of_the_environment():
    async with Pool(SandboxSpec(), size=1) as pool:
        pass
    with pytest.raises(PoolClosed):
        await run_episode(request(), arena(ScriptedPolicy(call("1"), answer("1")), pool))
