"""One group in a rollout worker: it ends when enough of it is there, and everybody's sandboxes and slots come back."""

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest
from arenas import mortal
from scripted import ScriptedPolicy, answer, call

from engine.cluster.rollout_members import rollout_worker_for
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import RolloutWorker, group_key
from engine.spec.generation import Generated, GenerateRequest
from engine.spec.run import RunSpec
from sandboxes.pool import Pool
from tests.engine.groups import requests_of

SPEC = RunSpec(
    name="group tests",
    environment={"id": "python-math", "sandbox": {"memory_mib": 64}},
    schedule={"prompts_per_step": 2, "group_size": 4, "minibatch_trajectories": 8},
    resources={"kv_slots": 4, "sandboxes": 8},
)
GROUP, OTHERS = requests_of(SPEC, 1)[:4], requests_of(SPEC, 1)[4:]
TURNS = call("6*7"), answer("42")


@pytest.fixture
async def sandboxes():
    async with Pool(SPEC.environment.sandbox, size=SPEC.resources.sandboxes) as pool:
        yield pool


class Slow(ScriptedPolicy):
    """The second turns of some rollouts wait until they may go on."""

    def __init__(self, is_slow: Callable[[str], bool]) -> None:
        super().__init__(*TURNS)
        self._is_slow = is_slow
        self.may_go_on = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> Generated:
        if self._played[request.session] and self._is_slow(request.session):
            await self.may_go_on.wait()
        return await super().generate(request)


class Overtaken(Slow):
    """Nobody has a second turn before the slow ones have asked for theirs."""

    def __init__(self, is_slow: Callable[[str], bool]) -> None:
        super().__init__(is_slow)
        self.slow_have_asked = asyncio.Event()

    async def generate(self, request: GenerateRequest) -> Generated:
        if self._played[request.session]:
            if self._is_slow(request.session):
                self.slow_have_asked.set()
            await self.slow_have_asked.wait()
        return await super().generate(request)


def slow_members(*members: int) -> Callable[[str], bool]:
    return lambda session: int(session.split("-")[2]) in members


def worker_for(policy: ScriptedPolicy, sandboxes: Pool) -> RolloutWorker:
    return rollout_worker_for(SPEC, policy, sandboxes)


async def until(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never comes true")


def sessions(policy: ScriptedPolicy) -> set[str]:
    return {request.session for request in policy.requests}


def ids(requests: Sequence[EpisodeRequest], *members: int) -> list[str]:
    return [requests[member].id for member in members]


async def test_the_first_that_come_back_are_kept_and_what_the_others_sampled_is_counted(sandboxes):
    policy = Slow(slow_members(1))
    collected = await worker_for(policy, sandboxes).collect_group(GROUP, enough=3, fewest=2)
    assert [trajectory.id for trajectory in collected.trajectories] == ids(GROUP, 0, 2, 3)
    assert (collected.unused_rollouts, collected.unused_tokens) == (1, len(TURNS[0]))
    assert set(policy.released) == sessions(policy), "the slot of the slow one came back"
    assert not collected.discarded


async def test_turns_of_those_that_are_not_needed_are_told_with_their_times_the_one_that_was_cut_off_too(sandboxes):
    policy, began_at = Overtaken(slow_members(1)), time.time()
    collected = await worker_for(policy, sandboxes).collect_group(GROUP, enough=3, fewest=2)
    over_at = time.time()
    assert [turn.rollout for turn in collected.unkept_turns] == ids(GROUP, 1, 1)
    first, cut_off = collected.unkept_turns
    assert began_at <= first.began_at <= first.began_at + first.seconds <= cut_off.began_at + 0.01
    assert cut_off.seconds > 0
    assert cut_off.began_at + cut_off.seconds <= over_at + 0.01
    assert len(policy.requests) == 7, "the turn that was cut off never reached the policy"


async def test_turns_of_a_rollout_that_was_lost_are_told_as_well(sandboxes):
    worker = worker_for(ScriptedPolicy(*TURNS), mortal(sandboxes, deaths=10**6))
    collected = await worker.collect_group(GROUP[2:], enough=2, fewest=2)
    assert collected.discarded["sandbox-lost"] >= 1
    assert {turn.rollout for turn in collected.unkept_turns} == {*ids(GROUP, 2, 3)}


async def test_where_all_are_needed_no_turn_is_told_apart(sandboxes):
    worker = worker_for(ScriptedPolicy(*TURNS), sandboxes)
    collected = await worker.collect_group(GROUP, enough=4, fewest=2)
    assert (len(collected.trajectories), collected.unkept_turns) == (4, [])


async def test_a_group_that_cannot_be_compared_any_more_ends_early(sandboxes):
    policy = Slow(slow_members(3))
    worker = worker_for(policy, mortal(sandboxes, deaths=10**6))
    collected = await worker.collect_group(GROUP[2:], enough=2, fewest=2)
    assert collected.trajectories == []
    assert collected.discarded["sandbox-lost"] + collected.unused_rollouts == 2
    assert collected.discarded["sandbox-lost"] >= 1


async def test_an_aborted_group_ends_at_once_and_says_what_it_cost(sandboxes):
    policy = Slow(slow_members(0, 1, 2, 3))
    worker = worker_for(policy, sandboxes)
    playing = asyncio.create_task(worker.collect_group(GROUP, enough=4, fewest=2))
    await until(lambda: len(policy.requests) == 4)
    worker.abort_group((GROUP[0].prompt, GROUP[0].version + 1))  # another start of the same prompt
    await asyncio.sleep(0.2)
    assert not playing.done()
    worker.abort_group(group_key(GROUP))
    collected = await playing
    assert (collected.trajectories, collected.unused_rollouts) == ([], 4)
    assert collected.unused_tokens == 4 * len(TURNS[0])
    assert set(policy.released) == sessions(policy)


async def test_no_episode_begins_while_the_worker_is_held_and_those_begun_end(sandboxes):
    policy = Slow(slow_members(0, 1, 2, 3))
    worker = worker_for(policy, sandboxes)
    playing = asyncio.create_task(worker.collect_group(GROUP, enough=4, fewest=2))
    await until(lambda: len(policy.requests) == 4)
    holding = asyncio.create_task(worker.hold())
    later = asyncio.create_task(worker.collect_group(OTHERS, enough=4, fewest=2))
    await asyncio.sleep(0.2)
    assert len(policy.requests) == 4
    assert not holding.done()
    policy.may_go_on.set()
    await asyncio.gather(holding, playing)
    assert len(sessions(policy)) == 4, "nobody has begun"
    worker.go_on()
    assert len((await later).trajectories) == 4


async def test_the_room_for_episodes_is_the_workers_and_not_a_calls(sandboxes):
    policy = Slow(lambda session: True)
    worker = worker_for(policy, sandboxes)  # 4 slots: 8 episodes
    requests = [requests_of(SPEC, step)[:4] for step in (1, 2, 3)]
    playing = [asyncio.create_task(worker.collect_group(group, enough=4, fewest=2)) for group in requests]
    await until(lambda: len(policy.requests) == 8)
    await asyncio.sleep(0.2)
    assert len(policy.requests) == 8
    policy.may_go_on.set()
    assert [len(collected.trajectories) for collected in await asyncio.gather(*playing)] == [4, 4, 4]


async def test_what_the_generator_raises_ends_the_group_and_is_raised(sandboxes):
    class Broken(ScriptedPolicy):
        async def generate(self, request: GenerateRequest) -> Generated:
            if len(self.requests) >= 4:
                raise ArithmeticError("no logits")
            return await super().generate(request)

    policy = Broken(*TURNS)
    with pytest.raises(ArithmeticError, match="no logits"):
        await worker_for(policy, sandboxes).collect_group(GROUP, enough=4, fewest=2)
    assert sessions(policy) <= set(policy.released)
