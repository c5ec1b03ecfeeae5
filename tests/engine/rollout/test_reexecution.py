"""Rollouts that begin inside an expert's trajectory: real sandboxes, and a policy that says what it is told to say."""

from random import Random

import pytest
from arenas import ENVIRONMENT, all_ids, arena, output, prompt, request, timeless
from scripted import WITH_REASONING, ScriptedPolicy, answer, call, logprobs_of

from engine.rollout.demonstrations import DemonstrationWriter
from engine.rollout.episode import ReplayDiverged, run_episode
from engine.spec.recipe import Reward
from engine.spec.rollout_group import Prefill
from engine.spec.supervised import Demonstrations
from engine.spec.trajectory import Start
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec


@pytest.fixture
async def sandboxes():
    async with Pool(SandboxSpec(timeout_s=1.0, memory_mib=64, output_bytes=4096), size=2) as pool:
        yield pool


async def expert_of(sandboxes, *turns):
    policy = ScriptedPolicy(*turns, context_tokens=400, version=3)
    return await run_episode(request(), arena(policy, sandboxes))


def started(expert, prefix, imitated=0, **changes):
    prefill = Prefill(expert.id, tuple(expert.turns[:prefix]), len(expert.turns), imitated)
    return request(prefill=prefill, member=5, seed=99, **changes)


async def test_the_policy_goes_on_where_the_expert_stood(sandboxes):
    expert = await expert_of(sandboxes, call("x=40", "Begin. "), call("x+=1"), call("x"), answer("41"))
    policy = ScriptedPolicy(call("x+=1;x"), answer("42"), context_tokens=400)
    trajectory = await run_episode(started(expert, 2, imitated=1), arena(policy, sandboxes))
    assert trajectory.start == Start(expert=expert.id, prefix=2, turns=4)
    assert [turn.prefilled for turn in trajectory.turns] == [True, True, False, False]
    assert [turn.imitated for turn in trajectory.turns] == [True, False, False, False]
    assert [turn.token_ids for turn in trajectory.turns[:2]] == [turn.token_ids for turn in expert.turns[:2]]
    assert trajectory.tool_calls[0].output == "42"
    assert [(change.kind, change.turn, change.start, change.stop, change.reason) for change in trajectory.changes] == [
        ("prefilled", 0, 0, len(expert.turns[0].token_ids), "imitated"),
        ("prefilled", 1, 0, len(expert.turns[1].token_ids), "replayed"),
    ]
    assert all_ids(trajectory) == policy.seen[next(iter(policy.seen))]


async def test_replayed_turns_have_the_log_probs_of_the_present_policy(sandboxes):
    expert = await expert_of(sandboxes, call("1"), answer("1"))
    policy = ScriptedPolicy(answer("1"), context_tokens=400, version=8)
    expert.turns[0].logprobs[:] = [0.0] * len(expert.turns[0].logprobs)
    turn = (await run_episode(started(expert, 1), arena(policy, sandboxes))).turns[0]
    assert turn.logprobs == logprobs_of(prompt(), turn.token_ids)
    assert set(turn.policy_versions) == {8}


async def test_a_prefix_of_nothing_is_a_fresh_start_with_a_name(sandboxes):
    expert = await expert_of(sandboxes, call("1"), answer("1"))
    played = [
        await run_episode(asked, arena(ScriptedPolicy(call("2"), answer("2"), context_tokens=400), sandboxes))
        for asked in (started(expert, 0), request(member=5, seed=99))
    ]
    assert played[0].start == Start(expert=expert.id, prefix=0, turns=2)
    assert timeless(played[0]) == {**timeless(played[1]), "start": played[0].start.model_dump()}


@pytest.mark.parametrize(("change", "reported"), [({"output": "3"}, "ok '3'"), ({"status": "error"}, "error '2'")])
async def test_an_observation_that_differs_ends_the_episode(sandboxes, change, reported):
    expert = await expert_of(sandboxes, call("1"), call("2"), answer("1"))
    recorded = expert.turns[1].tool_calls[0].model_copy(update=change)
    expert.turns[1] = expert.turns[1].model_copy(update={"tool_calls": [recorded]})
    policy = ScriptedPolicy(answer("1"), context_tokens=400)
    with pytest.raises(ReplayDiverged, match=f"turn 1: ok '2' instead of {reported}"):
        await run_episode(started(expert, 2), arena(policy, sandboxes))
    assert len(policy.released) == 1


async def test_a_turn_without_a_call_cannot_be_done_again(sandboxes):
    expert = await expert_of(sandboxes, call("1"), answer("1"))
    with pytest.raises(ReplayDiverged, match="calls no tool"):
        await run_episode(started(expert, 2), arena(ScriptedPolicy(context_tokens=400), sandboxes))


async def test_replayed_turns_count_towards_the_turn_limit(sandboxes):
    expert = await expert_of(sandboxes, call("1"), call("2"), call("3"), answer("1"))
    policy = ScriptedPolicy(*[call("4")] * 9, context_tokens=400)
    trajectory = await run_episode(started(expert, 3), arena(policy, sandboxes))
    assert [turn.prefilled for turn in trajectory.turns] == [True, True, True, False, False]
    assert trajectory.stop_reason == "turn-limit"


async def test_replayed_turns_count_towards_the_context(sandboxes):
    expert = await expert_of(sandboxes, call("1"), call("2"), answer("1"))
    room = len([*prompt(), *call("1"), *output("1"), *call("2")]) - 1
    policy = ScriptedPolicy(context_tokens=room)
    trajectory = await run_episode(started(expert, 2), arena(policy, sandboxes, context_tokens=room))
    assert (len(trajectory.turns), trajectory.stop_reason) == (1, "truncated")


async def test_draws_after_a_replay_are_those_of_the_turns_number(sandboxes):
    expert = await expert_of(sandboxes, call("1"), answer("1"))
    policy = ScriptedPolicy(answer("1"), context_tokens=400)
    asked = started(expert, 1)
    await run_episode(asked, arena(policy, sandboxes))
    assert [request.seed for request in policy.requests if not request.forced_ids] == [asked.turn_seed(1)]


async def test_an_experts_failed_call_is_not_purified(sandboxes):
    expert = await expert_of(sandboxes, call("1/0"), call("1"), answer("1"))
    policy = ScriptedPolicy(call("2/0"), call("2/1"), answer("2"), context_tokens=400)
    trajectory = await run_episode(started(expert, 1, purify=True), arena(policy, sandboxes))
    assert [[made.status for made in turn.tool_calls] for turn in trajectory.turns] == [["error"], ["ok"], []]
    assert [change.kind for change in trajectory.changes] == ["prefilled", "purified"]
    assert (trajectory.tool_errors, trajectory.first_attempt_errors) == (0, 1), (
        "the expert's failure is not the policy's"
    )
    assert trajectory.rewards["tool_errors"] == 0.0


async def test_every_scripted_demonstration_can_be_replayed_up_to_its_answer(sandboxes):
    wanted = Demonstrations(count=24, wrong_fraction=0.0, tool_error_fraction=0.5)
    writer = DemonstrationWriter(ENVIRONMENT, WITH_REASONING, Reward(), seed=Random(4).randrange(99))
    for expert in writer.demonstrations(wanted):
        calls = len(expert.tool_calls)
        asked = started(expert, calls, task=int(expert.task.id.removeprefix("train-")))
        policy = ScriptedPolicy(expert.turns[-1].token_ids, context_tokens=400)
        trajectory = await run_episode(asked, arena(policy, sandboxes))
        assert all_ids(trajectory) == all_ids(expert)
        assert trajectory.success
