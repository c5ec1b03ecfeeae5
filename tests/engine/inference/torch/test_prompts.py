"""A session cannot tell who its prompt was read for, with which others, or when."""

import asyncio
import random

import pytest
import torch

from engine.inference.torch.decoder import Decoder, Prefix
from engine.inference.torch.factory import builtin_generator
from engine.inference.torch.generator import PROMPT_FROM
from engine.inference.torch.memory import PREFILL_ROWS, PREFILL_TOKENS
from engine.inference.torch.prompts import Prompts
from engine.models.architecture import Architecture
from engine.models.qwen3 import Qwen3
from tests.engine.inference.torch.cast import SPEC, VOCABULARY, turn, until, weights

PROMPT = tuple(range(20, 60))
PASSES = -(-(len(PROMPT) - 1) // PREFILL_TOKENS)


@pytest.fixture
def decoder():
    made = Decoder(Architecture.of_builtin(SPEC, VOCABULARY), context_tokens=SPEC.context_tokens, slots=4, device="cpu")
    made.load(weights())
    return made


@pytest.fixture
async def generator():
    made = builtin_generator(SPEC, slots=16, threads=1, seed=0)
    await made.load_weights(weights(), version=1)
    yield made
    made.close()


def prompt(dice: random.Random, length: int) -> tuple[int, ...]:
    return tuple(dice.randrange(VOCABULARY) for _ in range(length))


def prefix_of(prompts: Prompts, ids: tuple[int, ...]) -> Prefix:
    return prompts._kept[ids]


def test_the_row_and_the_other_prompts_of_a_reading_change_no_bit(decoder):
    dice = random.Random(3)
    observed = [prompt(dice, length) for length in (1, 15, 16, 17, 32, 33, 100)]
    alone = {}
    for ids in observed:
        prompts = Prompts(decoder)
        prompts.read([ids])
        alone[ids] = prefix_of(prompts, ids)
    for _ in range(20):
        company = [prompt(dice, dice.randrange(1, 128)) for _ in range(PREFILL_ROWS - 2)]
        together = [*dice.sample(observed, 2), *company]
        dice.shuffle(together)
        prompts = Prompts(decoder)
        prompts.read(together)
        for ids in set(together) & alone.keys():
            assert torch.equal(prefix_of(prompts, ids).keys_LKEP, alone[ids].keys_LKEP)
            assert torch.equal(prefix_of(prompts, ids).values_LKPE, alone[ids].values_LKPE)


def test_prompts_are_kept_up_to_the_number_of_slots_or_of_a_reading_and_the_latest_used_stay(decoder):
    dice = random.Random(3)
    prompts, used = Prompts(decoder), prompt(dice, 9)
    prompts.read([used])
    for _ in range(20):
        prompts.read([prompt(dice, 9) for _ in range(PREFILL_ROWS - 1)])
        assert len(prompts) <= PREFILL_ROWS
        prompts.place(used, 0)


async def test_a_group_reads_its_prompt_once_and_all_get_the_bits_of_a_lone_rollout(generator):
    alone = await generator.generate(turn("alone", PROMPT))
    assert generator.stats()["prefills"] == PASSES
    await generator.load_weights(weights(), version=1)
    group = await asyncio.gather(*(generator.generate(turn(f"s{i}", PROMPT)) for i in range(8)))
    late = await generator.generate(turn("late", PROMPT))
    assert generator.stats()["prefills"] == 2 * PASSES
    assert {*group, late} == {alone}


async def test_a_prompt_is_read_anew_under_new_weights(generator):
    await generator.generate(turn("old", PROMPT))
    fresh = builtin_generator(SPEC, slots=16, threads=1)
    for each in (generator, fresh):
        await each.load_weights(weights(seed=6), version=2)
    answers = [await each.generate(turn("new", PROMPT)) for each in (generator, fresh)]
    fresh.close()
    assert answers[0] == answers[1]


async def test_what_follows_a_shared_prompt_is_the_sessions_own(generator):
    first, _ = [await generator.generate(turn("first", ids)) for ids in (PROMPT, range(30, 49))]
    second = await generator.generate(turn("second", PROMPT, seed=5))
    assert first.token_ids != second.token_ids
    assert await generator.generate(turn("third", PROMPT)) == first


@pytest.mark.parametrize("length", [1, PROMPT_FROM, PROMPT_FROM + 1, PREFILL_TOKENS + 1, PREFILL_TOKENS + 2, 70])
async def test_logprobs_after_prompts_of_any_length_are_those_of_the_training_model(generator, length):
    ids = list(range(20, 20 + length))
    answer = await generator.generate(turn("s", ids))
    model = Qwen3(SPEC, VOCABULARY)
    model.load_state_dict(weights())
    with torch.no_grad():
        logp_TV = model(torch.tensor([[*ids, *answer.token_ids]])).log_softmax(-1)[0]
    expected = [logp_TV[length - 1 + t, token].item() for t, token in enumerate(answer.token_ids)]
    assert list(answer.logprobs) == pytest.approx(expected, abs=1e-4)


async def test_prompts_that_wait_for_a_slot_are_read_with_the_first():
    generator = builtin_generator(SPEC, slots=1, threads=1)
    dice = random.Random(3)

    async def episode(name: str) -> None:
        await generator.generate(turn(name, prompt(dice, PREFILL_TOKENS)))
        await generator.release(name)

    await asyncio.gather(*(episode(f"s{i}") for i in range(PREFILL_ROWS)))
    assert generator.stats()["prefills"] == 1
    generator.close()


async def test_a_waiting_prompt_that_will_never_fit_disturbs_nobody():
    generator = builtin_generator(SPEC, slots=1, threads=1)
    turns = [asyncio.create_task(generator.generate(turn(n, [20] * k))) for n, k in (("s", 40), ("long", 200))]
    await until(lambda: generator.stats()["waiting"] == 1)
    assert (await turns[0]).stopped_by == "length"
    await generator.release("s")
    assert (await turns[1]).stopped_by == "context"
    generator.close()


@pytest.mark.parametrize("slots", [3, 64])
async def test_more_prompts_than_are_kept_and_rewinds_between_change_no_bit(slots):
    generator = builtin_generator(SPEC, slots=slots, threads=1)
    dice = random.Random(3)
    prompts = [prompt(dice, dice.randrange(5, 50)) for _ in range(30)]

    async def episode(name: str, ids: tuple[int, ...]):
        first = await generator.generate(turn(name, ids, seed=1))
        await generator.generate(turn(name, PROMPT[:10], seed=2))
        await generator.rewind(name, len(ids) + len(first.token_ids))
        second = await generator.generate(turn(name, PROMPT[:7], seed=3))
        await generator.rewind(name, 0)
        again = await generator.generate(turn(name, ids, seed=1))
        await generator.release(name)
        return first, second, again

    alone = {ids: await episode("alone", ids) for ids in prompts}
    mixed = dice.sample(prompts * 3, 90)
    together = await asyncio.gather(*(episode(f"s{i}", ids) for i, ids in enumerate(mixed)))
    generator.close()
    assert together == [alone[ids] for ids in mixed]
    assert all(first == again for first, _, again in together)
