"""Episodes, the torch generator and real sandboxes together."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from scripted import answer, call

from engine.cluster.rollout_members import rollout_worker_for
from engine.inference.interface import GenerationAborted
from engine.inference.torch.factory import builtin_generator
from engine.models.qwen3 import Qwen3
from engine.models.tokenizer import tokenizer_for
from engine.models.weights import StateDict
from engine.rollout.requests import shares
from engine.spec.exploration import Purification
from engine.spec.run import RunSpec
from sandboxes.pool import Pool
from tests.engine.groups import evaluations_of, requests_of

SPEC = RunSpec(
    name="rollouts with a generator",
    model={"layers": 1, "hidden_size": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 16},
    schedule={"prompts_per_step": 8, "group_size": 4, "minibatch_trajectories": 32},
    resources={"kv_slots": 8, "sandboxes": 4, "threads": 1},
)
REQUESTS = [*requests_of(SPEC, 1), *evaluations_of(SPEC, 0, 8, {})]


@pytest.fixture
async def sandboxes():
    async with Pool(SPEC.environment.sandbox, size=SPEC.resources.sandboxes) as pool:
        yield pool


@pytest.fixture
def generator():
    generator = builtin_generator(SPEC.model, slots=SPEC.resources.kv_slots, threads=1, seed=0)
    yield generator
    generator.close()


def weights():
    return StateDict(Qwen3(SPEC.model, len(tokenizer_for("characters")), seed=0).state_dict())


def tokens(collected):
    return {
        trajectory.id: [(turn.token_ids, turn.logprobs) for turn in trajectory.turns]
        for trajectory in collected.trajectories
    }


async def test_equal_requests_give_equal_tokens_whoever_plays_them_and_in_whatever_order(sandboxes, generator):
    alone = tokens(await rollout_worker_for(SPEC, generator, sandboxes).collect(REQUESTS))
    assert len({str(item) for item in alone.values()}) > len(REQUESTS) / 2  # else equality would prove nothing
    halves = [rollout_worker_for(SPEC, generator, sandboxes).collect(share[::-1]) for share in shares(REQUESTS, 2)]
    first, second = await asyncio.gather(*halves)
    assert tokens(first) | tokens(second) == alone


async def test_after_a_collection_no_session_is_left(sandboxes, generator):
    await rollout_worker_for(SPEC, generator, sandboxes).collect(REQUESTS)
    await generator.load_weights(weights(), version=1)  # waits until all that was posted before is done
    assert (generator.stats()["sessions"], generator.stats()["waiting"]) == (0, 0)


async def test_a_cancelled_collection_leaves_no_session(sandboxes, generator):
    collecting = asyncio.create_task(rollout_worker_for(SPEC, generator, sandboxes).collect(REQUESTS))
    while not generator.stats()["sampled_tokens"]:  # noqa: ASYNC110 - the generator tells nobody
        await asyncio.sleep(0)
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    await generator.load_weights(weights(), version=1)
    assert (generator.stats()["sessions"], generator.stats()["waiting"]) == (0, 0)


async def test_an_aborted_generator_ends_the_collection(sandboxes, generator):
    collecting = asyncio.create_task(rollout_worker_for(SPEC, generator, sandboxes).collect(REQUESTS))
    while not generator.stats()["sampled_tokens"]:  # noqa: ASYNC110 - the generator tells nobody
        await asyncio.sleep(0)
    await generator.abort_all()
    with pytest.raises(GenerationAborted):
        await collecting
    assert sandboxes.stats().busy == 0


class Dictated:
    """A real generator that is told what to say, turn by turn, and says with which log-probs it would."""

    def __init__(self, generator, *turns):
        self._generator, self._turns, self._played = generator, turns, Counter()
        self.rewind, self.release = generator.rewind, generator.release

    async def generate(self, asked):
        if asked.forced_ids:
            return await self._generator.generate(asked)
        number = self._played[asked.session]
        self._played[asked.session] += 1
        return await self._generator.generate(replace(asked, forced_ids=tuple(self._turns[number])))


async def test_purified_episodes_do_not_disturb_each_other_and_leave_no_session(sandboxes, generator):
    spec = SPEC.model_copy(update={"recipe": SPEC.recipe.model_copy(update={"purification": Purification(share=0.5)})})
    requests = requests_of(spec, 1)
    assert 0 < sum(request.purify for request in requests) < len(requests)
    turns = call("x=1"), call("x/0"), call("nobody"), call("x/1"), answer("1")
    played = [
        await rollout_worker_for(spec, Dictated(generator, *turns), sandboxes).collect(asked)
        for asked in (requests, requests[::-1])
    ]
    assert tokens(played[0]) == tokens(played[1])
    repaired = {
        trajectory.id
        for trajectory in played[0].trajectories
        if [change.kind for change in trajectory.changes] == ["purified"]
    }
    assert repaired == {request.id for request in requests if request.purify}
    await generator.load_weights(weights(), version=1)
    assert (generator.stats()["sessions"], sandboxes.stats().busy) == (0, 0)
