import asyncio

import pytest
from arenas import mortal, timeless
from scripted import ScriptedPolicy, answer, call

from engine.cluster.rollout_members import rollout_worker_for
from engine.environments import python_math
from engine.environments.contract import EnvironmentProcessLost, VerifierFailed
from engine.rollout.requests import shares
from engine.rollout.worker import ENVIRONMENT_ATTEMPTS, ENVIRONMENT_LOSSES
from engine.spec.generation import Truncation
from engine.spec.run import RunSpec
from sandboxes.pool import Pool
from tests.engine.groups import evaluations_of, requests_of

SPEC = RunSpec(
    name="worker tests",
    environment={"id": "python-math", "sandbox": {"timeout_s": 0.5, "memory_mib": 64, "output_bytes": 4096}},
    schedule={"prompts_per_step": 6, "group_size": 2, "minibatch_trajectories": 12},
    resources={"kv_slots": 4, "sandboxes": 2},
)
REQUESTS = requests_of(SPEC, 1)


@pytest.fixture
async def sandboxes():
    async with Pool(SPEC.environment.sandbox, size=SPEC.resources.sandboxes) as pool:
        yield pool


async def test_trajectories_come_in_the_order_of_their_requests(sandboxes):
    collected = await rollout_worker_for(SPEC, ScriptedPolicy(call("6*7"), answer("42")), sandboxes).collect(REQUESTS)
    assert [trajectory.id for trajectory in collected.trajectories] == [request.id for request in REQUESTS]
    assert all(trajectory.tool_calls[0].output == "42" for trajectory in collected.trajectories)
    assert not collected.discarded


HOSTILE = {
    "loops": "while 1:0",
    "prints a gigabyte": "print('1'*10**9)",
    "prints for ever": "while 1:print('1'*999)",
    "forks": "import os\nwhile 1:os.fork()",
    "kills everything": "import os;os.kill(-1,9)",
    "kills init": "import os;os.kill(1,9)",
    "eats memory": "x='1'\nwhile 1:x+=x",
    "leaves": "import os;os._exit(3)",
    "dives": "f=lambda:f()\nf()",
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_tool_call_costs_nobody_else_anything(sandboxes, code):
    """Its episode ends in an error observation or is discarded and counted; the others are as always."""

    class OneHostile(ScriptedPolicy):
        async def generate(self, request):
            hostile = request.session.startswith(f"{REQUESTS[3].id}-") and not self._played[request.session]
            generated = await super().generate(request)
            if hostile:
                tokens = tuple(call(code))
                return type(generated)(tokens, (-1.0,) * len(tokens), (0,) * len(tokens), "stop")
            return generated

    policy = OneHostile(call("6*7"), answer("42"))
    collected = await rollout_worker_for(SPEC, policy, sandboxes).collect(REQUESTS)
    by_id = {trajectory.id: trajectory for trajectory in collected.trajectories}
    hostile = by_id.pop(REQUESTS[3].id, None)
    assert len(by_id) == len(REQUESTS) - 1
    assert all(rollout.tool_calls[0].output == "42" for rollout in by_id.values())
    if hostile is None:
        assert collected.discarded == {"sandbox-lost": 1}
    else:
        # The kernel does not deliver what a pid namespace sends to its own init.
        assert hostile.tool_calls[0].status == ("ok" if code == HOSTILE["kills init"] else "error")
        assert not collected.discarded


async def test_an_episode_whose_sandbox_is_lost_once_is_played_again_as_if_nothing_had_been(sandboxes):
    policy, undisturbed = ScriptedPolicy(call("6*7"), answer("42")), ScriptedPolicy(call("6*7"), answer("42"))
    collected = await rollout_worker_for(SPEC, policy, mortal(sandboxes, deaths=1)).collect(REQUESTS[:1])
    expected = await rollout_worker_for(SPEC, undisturbed, sandboxes).collect(REQUESTS[:1])
    assert [*map(timeless, collected.trajectories)] == [*map(timeless, expected.trajectories)]
    assert not collected.discarded
    assert policy.requests[0].seed == policy.requests[1].seed == undisturbed.requests[0].seed
    assert policy.requests[0].session != policy.requests[1].session


async def test_an_episode_whose_sandbox_is_lost_twice_is_discarded_and_counted(sandboxes):
    policy = ScriptedPolicy(call("6*7"), answer("42"))
    collected = await rollout_worker_for(SPEC, policy, mortal(sandboxes, deaths=2)).collect(REQUESTS[:1])
    assert (collected.trajectories, collected.discarded) == ([], {"sandbox-lost": 1})
    assert len(policy.released) == 2


async def test_a_failing_verifier_is_counted_by_itself_and_is_no_reward(sandboxes, monkeypatch):
    def is_right(task, answer):
        raise VerifierFailed("the tests hung")

    monkeypatch.setattr(python_math, "is_right", is_right)
    collected = await rollout_worker_for(SPEC, ScriptedPolicy(answer("42")), sandboxes).collect(REQUESTS[:2])
    assert (collected.trajectories, collected.discarded) == ([], {"verifier-failed": 2})


def losing(right, losses):
    """A scorer whose environment's process is lost so often, as in the crash of an episode beside it."""
    left = ["it ended"] * losses

    def is_right(task, answer):
        if left:
            raise EnvironmentProcessLost(left.pop())
        return right(task, answer)

    return is_right


async def test_an_episode_whose_environment_is_lost_is_played_again_and_says_so(sandboxes, monkeypatch):
    monkeypatch.setattr(python_math, "is_right", losing(python_math.is_right, ENVIRONMENT_ATTEMPTS - 1))
    collected = await rollout_worker_for(SPEC, ScriptedPolicy(answer("42")), sandboxes).collect(REQUESTS[:1])
    (change,) = collected.trajectories[0].changes
    assert (change.kind, change.reason, change.details["environment-lost"]) == ("resampled", "environment-lost", 2)
    assert not collected.discarded


async def test_an_episode_whose_environment_is_always_lost_is_discarded_and_counted(sandboxes, monkeypatch):
    monkeypatch.setattr(python_math, "is_right", losing(python_math.is_right, ENVIRONMENT_ATTEMPTS))
    collected = await rollout_worker_for(SPEC, ScriptedPolicy(answer("42")), sandboxes).collect(REQUESTS[:1])
    assert (collected.trajectories, collected.discarded) == ([], {"environment-lost": 1})


async def test_losses_of_processes_that_brought_others_to_their_end_are_borne_longer(sandboxes, monkeypatch):
    right, left = python_math.is_right, [EnvironmentProcessLost("it ended", finished_episodes=6)] * 10

    def is_right(task, answer):
        if left:
            raise left.pop()
        return right(task, answer)

    monkeypatch.setattr(python_math, "is_right", is_right)
    collected = await rollout_worker_for(SPEC, ScriptedPolicy(answer("42")), sandboxes).collect(REQUESTS[:1])
    (change,) = collected.trajectories[0].changes
    assert change.details["environment-lost"] == 10
    left += [EnvironmentProcessLost("it ended", finished_episodes=6)] * ENVIRONMENT_LOSSES
    collected = await rollout_worker_for(SPEC, ScriptedPolicy(answer("42")), sandboxes).collect(REQUESTS[:1])
    assert collected.discarded == {"environment-lost": 1}


async def test_a_failing_environment_costs_its_own_episode_only(sandboxes, monkeypatch, caplog):
    right = python_math.is_right

    def is_right(task, answer):
        if task.id == "train-3":
            raise RuntimeError("this task is broken")
        return right(task, answer)

    monkeypatch.setattr(python_math, "is_right", is_right)
    collected = await rollout_worker_for(SPEC, ScriptedPolicy(answer("42")), sandboxes).collect(REQUESTS)
    assert collected.discarded == {"environment-failed": 2}
    assert len(collected.trajectories) == len(REQUESTS) - 2
    assert "this task is broken" in caplog.text


async def test_a_dead_generator_ends_the_collection_and_frees_everything(sandboxes):
    class Dying(ScriptedPolicy):
        async def generate(self, request):
            if len(self.requests) >= 7:
                raise ConnectionError("the generator died")
            return await super().generate(request)

    policy = Dying(call("6*7"), answer("42"))
    with pytest.raises(ConnectionError, match="the generator died"):
        await rollout_worker_for(SPEC, policy, sandboxes).collect(REQUESTS)
    await _everything_is_given_back(policy, sandboxes)


async def test_a_cancelled_collection_gives_sandboxes_and_sessions_back(sandboxes):
    policy = ScriptedPolicy(call("while 1:0"), answer("42"))
    collecting = asyncio.create_task(rollout_worker_for(SPEC, policy, sandboxes).collect(REQUESTS))
    while sandboxes.stats().busy < 2:  # noqa: ASYNC110 - the pool tells nobody
        await asyncio.sleep(0.01)
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    await _everything_is_given_back(policy, sandboxes)


async def test_no_more_than_two_episodes_per_slot_are_in_flight(sandboxes):
    class Counting(ScriptedPolicy):
        most = 0

        async def generate(self, request):
            generated = await super().generate(request)
            self.most = max(self.most, len(self.seen) - len(self.released))
            return generated

    policy = Counting(call("6*7"), answer("42"))
    await rollout_worker_for(SPEC, policy, sandboxes).collect(REQUESTS)
    assert policy.most == 2 * SPEC.resources.kv_slots


def test_training_takes_its_tasks_in_turn_and_begins_again_after_the_last():
    spec = SPEC.model_copy(update={"dataset": SPEC.dataset.model_copy(update={"train_tasks": 10})})
    numbers = [[request.task for request in requests_of(spec, step) if request.member == 0] for step in (1, 2, 3)]
    assert numbers == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 0, 1], [2, 3, 4, 5, 6, 7]]


def test_evaluation_meets_each_held_out_task_once_greedily_and_once_by_sampling():
    asked = evaluations_of(SPEC, version=4, tasks=5, prompts={})
    assert [(request.purpose, request.task, request.temperature) for request in asked] == [
        *(("eval-greedy", task, 0.0) for task in range(5)),
        *(("eval-sampled", task, 1.0) for task in range(5)),
    ]
    assert {request.split for request in asked} == {"heldout"}


def test_episodes_sample_as_schedule_and_evaluation_say():
    spec = RunSpec.model_validate(
        {
            "name": "cut",
            "schedule": {"temperature": 0.4, "top_p": 0.6, "top_k": 9, "min_p": 0.1, "logprobs_at": "truncated"},
            "evaluation": {"temperature": 0.8, "top_p": 0.7, "top_k": 5},
            "recipe": {"purification": {"in_evaluation": True}},
        }
    )
    trained, cut = requests_of(spec, 1)[0], Truncation(top_k=9, top_p=0.6, min_p=0.1)
    assert (trained.temperature, trained.truncation) == (0.4, cut)
    assert (trained.logprob_temperature, trained.logprobs_truncated) == (0.4, True)
    greedy, sampled, purified = evaluations_of(spec, 0, 1, {})
    assert (greedy.temperature, greedy.truncation) == (0.0, Truncation())
    for asked in (sampled, purified):
        assert (asked.temperature, asked.truncation) == (0.8, Truncation(top_k=5, top_p=0.7))
        assert (asked.logprob_temperature, asked.logprobs_truncated) == (1.0, False)


def test_no_two_requests_of_a_run_share_an_id_or_a_seed():
    asked = [*requests_of(SPEC, 1), *requests_of(SPEC, 2), *evaluations_of(SPEC, 0, 50, {})]
    asked += evaluations_of(SPEC, 2, 50, {"eval-greedy": 50, "eval-sampled": 50})
    assert len({request.id for request in asked}) == len({request.seed for request in asked}) == len(asked)
    other = SPEC.model_copy(update={"seed": 1})
    assert not {request.seed for request in requests_of(other, 1)} & {request.seed for request in asked}


def test_shares_of_workers_are_even_and_complete():
    dealt = shares(REQUESTS, 5)
    assert sorted(request.id for share in dealt for request in share) == sorted(request.id for request in REQUESTS)
    assert {len(share) for share in dealt} == {2, 3}


async def _everything_is_given_back(policy, sandboxes):
    async with asyncio.timeout(10):
        while sandboxes.stats().busy or sandboxes.stats().cleaning:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert set(policy.seen) <= set(policy.released)
    async with sandboxes.acquire() as one, sandboxes.acquire() as other:
        assert [(await sandbox.run_python("1+1")).stdout for sandbox in (one, other)] == ["2\n", "2\n"]
