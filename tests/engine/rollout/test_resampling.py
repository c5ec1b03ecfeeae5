"""Rollouts that teach nothing are played again: real sandboxes, and a policy that obeys its seed."""

from dataclasses import replace

import pytest
from arenas import mortal, timeless
from scripted import ScriptedPolicy, answer, call

from engine.cluster.rollout_members import rollout_worker_for
from engine.spec.rollout_group import Prefill
from engine.spec.run import RunSpec
from sandboxes.pool import Pool
from tests.engine.demonstrations import demonstration_writer_of
from tests.engine.groups import evaluations_of, requests_of


def spec(**resampling):
    return RunSpec(
        name="resampling",
        environment={"id": "python-math", "max_turns": 9, "sandbox": {"timeout_s": 0.5, "memory_mib": 64}},
        model={"context_tokens": 400},
        schedule={"prompts_per_step": 4, "group_size": 2, "minibatch_trajectories": 8},
        recipe={"selection": {"resampling": resampling or None}},
        resources={"kv_slots": 4, "sandboxes": 2},
    )


SPEC = spec(repeated_errors=3, max_tries=2)
(FIRST, *_) = REQUESTS = requests_of(SPEC, 1)
BARREN = [*[call("1/0")] * 3, answer("0")]
FRUITFUL = [call("1/0"), call("1/0"), call("1"), call("1/0"), answer("1")]


@pytest.fixture
async def sandboxes():
    async with Pool(SPEC.environment.sandbox, size=2) as pool:
        yield pool


class Obedient(ScriptedPolicy):
    """Plays each rollout by the script that stands for the seed of its first turn."""

    def __init__(self, scripts, otherwise=FRUITFUL):
        super().__init__(context_tokens=400)
        self._scripts, self._otherwise, self._script = scripts, otherwise, {}

    def script(self, request):
        return self._script.setdefault(request.session, self._scripts.get(request.seed, self._otherwise))


def script_of_tries(*scripts, request=FIRST):
    return {request.try_number(number).turn_seed(0): turns for number, turns in enumerate(scripts)}


async def collected(sandboxes, scripts, requests=(FIRST,), spec=SPEC, **otherwise):
    policy = Obedient(scripts, **otherwise)
    return await rollout_worker_for(spec, policy, sandboxes).collect(requests), policy


async def test_three_failures_in_a_row_are_played_again_with_other_draws(sandboxes):
    result, policy = await collected(sandboxes, script_of_tries(BARREN))
    (trajectory,) = result.trajectories
    assert (trajectory.id, trajectory.answer, result.resampled) == (FIRST.id, "1", 1)
    (change,) = trajectory.changes
    assert (change.kind, change.reason) == ("resampled", "repeated-errors")
    assert change.details == {"tries": 1, "repeated-errors": 1}
    assert len({request.seed for request in policy.requests}) == len(policy.requests)


async def test_after_the_last_try_what_there_is_stays(sandboxes):
    result, policy = await collected(sandboxes, script_of_tries(BARREN, BARREN, BARREN), otherwise=[answer("9")])
    (trajectory,) = result.trajectories
    assert (trajectory.answer, result.resampled, len(policy.seen)) == ("0", 2, 3)
    assert trajectory.changes[0].details == {"tries": 2, "repeated-errors": 2}


async def test_a_rollout_that_recovers_in_time_stays(sandboxes):
    result, _ = await collected(sandboxes, {}, REQUESTS)
    assert (result.resampled, len(result.trajectories)) == (0, len(REQUESTS))
    assert not any(trajectory.changes for trajectory in result.trajectories)


async def test_a_rollout_lost_twice_is_played_with_other_draws(sandboxes):
    dying = mortal(sandboxes, deaths=2)
    result, policy = await collected(dying, {}, spec=spec(repeated_errors=None))
    (trajectory,) = result.trajectories
    assert trajectory.changes[0].details == {"tries": 1, "lost": 1}
    assert (result.resampled, result.discarded) == (1, {})
    seeds = [request.seed for request in policy.requests]
    assert seeds[:3] == [FIRST.turn_seed(0)] * 2 + [FIRST.try_number(1).turn_seed(0)]


async def test_an_accidental_loss_changes_no_draw(sandboxes):
    """Else a sandbox killed from outside would change the run."""
    once, _ = await collected(mortal(sandboxes, deaths=1), script_of_tries(BARREN))
    never, _ = await collected(sandboxes, script_of_tries(BARREN))
    assert [timeless(trajectory) for trajectory in once.trajectories] == [
        timeless(trajectory) for trajectory in never.trajectories
    ]


async def test_a_rollout_that_is_always_lost_is_discarded_and_counted(sandboxes):
    result, _ = await collected(mortal(sandboxes, deaths=99), {})
    assert (result.trajectories, result.discarded, result.resampled) == ([], {"sandbox-lost": 1}, 2)


async def test_who_is_played_again_does_not_depend_on_company_or_order(sandboxes):
    scripts = script_of_tries(BARREN) | script_of_tries(BARREN, BARREN, request=REQUESTS[5])
    alone, _ = await collected(sandboxes, scripts, [REQUESTS[5]])
    together, _ = await collected(sandboxes, scripts, REQUESTS[::-1])
    assert together.resampled == 3
    assert timeless(together.trajectories[2]) == timeless(alone.trajectories[0])


async def test_an_experts_failures_are_not_the_rollouts(sandboxes):
    expert = (await collected(sandboxes, script_of_tries(BARREN), spec=spec()))[0].trajectories[0]
    prefill = Prefill(expert.id, tuple(expert.turns[:2]), len(expert.turns), 0)
    asked = replace(FIRST, prefill=prefill)
    result, _ = await collected(sandboxes, {}, [asked], otherwise=[call("1/0"), answer("1")])
    calls = [call for turn in result.trajectories[0].turns for call in turn.tool_calls]
    assert [call.status for call in calls] == ["error"] * 3
    assert result.resampled == 0


async def test_evaluations_are_never_played_again(sandboxes):
    asked = evaluations_of(SPEC, 0, 2, {})
    result, _ = await collected(sandboxes, {}, asked, otherwise=BARREN)
    assert (result.resampled, len(result.trajectories)) == (0, len(asked))


async def test_without_resampling_every_rollout_stays(sandboxes):
    off = spec()
    assert off.recipe.selection.resampling is None
    result, _ = await collected(sandboxes, script_of_tries(BARREN), spec=off)
    assert (result.resampled, result.trajectories[0].changes) == (0, [])


async def test_a_replay_that_diverges_is_discarded_and_counted(sandboxes):
    expert = demonstration_writer_of(SPEC).solution(FIRST.task)
    recorded = expert.turns[0].tool_calls[0].model_copy(update={"output": "something else"})
    prefill = Prefill(expert.id, (expert.turns[0].model_copy(update={"tool_calls": [recorded]}),), len(expert.turns), 0)
    asked = [replace(FIRST, prefill=prefill), REQUESTS[1]]
    result, policy = await collected(sandboxes, {}, asked, otherwise=[answer("1")])
    assert result.discarded == {"replay-diverged": 1}
    assert [trajectory.id for trajectory in result.trajectories] == [REQUESTS[1].id]
    assert set(policy.seen) == set(policy.released)
