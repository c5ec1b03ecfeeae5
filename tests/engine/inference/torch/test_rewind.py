"""Forced turns and rewound sessions are, bit for bit, what sampling the same tokens would have left."""

import asyncio
import random
from dataclasses import replace

import pytest

from engine.inference.interface import GenerationAborted
from engine.inference.torch.factory import builtin_generator
from engine.inference.torch.generator import TorchGenerator
from engine.spec.generation import Generated, GenerateRequest
from tests.engine.inference.torch.cast import SPEC, VOCABULARY, crowd_member, turn, until, weights

PROMPT, OBSERVATION = tuple(range(20, 81)), tuple(range(30, 49))


def forced(session: str, new_ids, ids) -> GenerateRequest:
    return GenerateRequest(session, tuple(new_ids), 0, frozenset({ids[0]}), 0.7, 3, tuple(ids))


async def second_turn(generator: TorchGenerator, session: str) -> Generated:
    return await generator.generate(turn(session, OBSERVATION, seed=2, max_new_tokens=10))


@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:8]], ids=["prefilled prompt", "stepped prompt"])
async def test_forced_tokens_have_the_logprobs_that_they_had_when_they_were_sampled(generator, prompt):
    sampled = await generator.generate(turn("s", prompt, seed=1))
    second = await second_turn(generator, "s")
    await generator.rewind("s", 0)
    again = await generator.generate(forced("s", prompt, sampled.token_ids))
    assert again == replace(sampled, stopped_by="stop")
    assert await generator.generate(forced("s", OBSERVATION, second.token_ids)) == replace(second, stopped_by="stop")


async def test_forcing_in_any_company_and_slot_gives_the_same_bits(generator):
    sampled = await generator.generate(turn("s", PROMPT, seed=1))
    dice = random.Random(4)
    crowd = [crowd_member(generator, f"{i}", dice) for i in range(80)]
    entrants = [generator.generate(forced(f"f{i}", PROMPT, sampled.token_ids)) for i in range(3)]
    answers = await asyncio.gather(*crowd[:30], entrants[0], *crowd[30:70], *entrants[1:], *crowd[70:])
    assert [answers[30], *answers[71:73]] == [replace(sampled, stopped_by="stop")] * 3


async def test_temperature_and_the_draws_of_a_forced_turn_mean_nothing(generator):
    ids = (7, 8, 9)
    plain = await generator.generate(forced("a", PROMPT, ids))
    request = replace(forced("b", PROMPT, ids), temperature=0.0, seed=99, max_new_tokens=1)
    assert await generator.generate(request) == plain
    assert (plain.token_ids, plain.policy_versions, plain.stopped_by) == (ids, (1, 1, 1), "stop")


async def test_a_session_goes_on_from_a_forced_turn_as_from_the_sampled_one(generator):
    sampled = await generator.generate(turn("sampled", PROMPT, seed=1))
    await generator.generate(forced("forced", PROMPT, sampled.token_ids))
    assert await second_turn(generator, "forced") == await second_turn(generator, "sampled")


async def test_a_rewound_session_goes_on_as_one_that_never_had_what_was_removed(generator):
    """The removed tokens include a turn that was read in chunks and filled the cache far beyond."""
    await generator.generate(turn("straight", PROMPT[:40], seed=1))
    await generator.generate(turn("rewound", PROMPT[:40], seed=1))
    await generator.generate(turn("rewound", PROMPT[:55], seed=8))
    await generator.rewind("rewound", 52)
    assert await second_turn(generator, "rewound") == await second_turn(generator, "straight")


@pytest.mark.parametrize("length", [47, 48, 49])
async def test_where_chunks_begin_does_not_depend_on_what_was_removed(generator, length):
    """With the last kept token read already, a turn of 48 would be stepped where the straight one is prefilled."""
    await generator.generate(turn("straight", PROMPT[:40], seed=1))
    await generator.generate(turn("rewound", PROMPT[:40], seed=1))
    await second_turn(generator, "rewound")
    await generator.rewind("rewound", 52)
    answers = [await generator.generate(turn(name, range(10, 10 + length), seed=2)) for name in ("straight", "rewound")]
    assert answers[0] == answers[1]


async def test_a_turn_cut_in_the_middle_goes_on_as_a_shorter_turn(generator):
    whole = await generator.generate(turn("rewound", PROMPT, seed=1))
    await generator.generate(forced("straight", PROMPT, whole.token_ids[:5]))
    await generator.rewind("rewound", len(PROMPT) + 5)
    assert await second_turn(generator, "rewound") == await second_turn(generator, "straight")


async def test_a_session_rewound_to_nothing_is_new(generator):
    first = await generator.generate(turn("s", PROMPT, seed=1))
    await generator.rewind("s", 0)
    assert await generator.generate(turn("s", PROMPT, seed=1)) == first


async def test_rewinding_to_all_that_there_is_changes_nothing(generator):
    for name in ("straight", "rewound"):
        await generator.generate(turn(name, PROMPT, seed=1))
    await generator.rewind("rewound", len(PROMPT) + 12)
    assert await second_turn(generator, "rewound") == await second_turn(generator, "straight")


async def test_forced_tokens_that_do_not_fit_change_nothing(generator):
    expected = [await generator.generate(turn("straight", PROMPT, seed=1)), await second_turn(generator, "straight")]
    first = await generator.generate(turn("s", PROMPT, seed=1))
    refused = await generator.generate(forced("s", OBSERVATION, [20] * (SPEC.context_tokens - 73 - 19 + 1)))
    assert (refused.token_ids, refused.logprobs, refused.stopped_by) == ((), (), "context")
    assert [first, await second_turn(generator, "s")] == expected


async def test_forced_tokens_may_fill_the_context_to_its_last_place(generator):
    answer = await generator.generate(forced("s", PROMPT, [20] * (SPEC.context_tokens - len(PROMPT))))
    assert (len(answer.token_ids), answer.stopped_by) == (SPEC.context_tokens - len(PROMPT), "stop")


async def test_new_weights_show_in_the_versions_of_forced_tokens(generator):
    running = asyncio.create_task(generator.generate(forced("s", PROMPT[:10], [20] * 100)))
    await until(lambda: generator.stats()["steps"] >= 15)
    await generator.load_weights(weights(seed=6), version=2)
    assert set((await running).policy_versions) == {1, 2}


@pytest.mark.parametrize("ids", [(VOCABULARY,), (-1,)])
async def test_forced_ids_outside_the_vocabulary_are_refused(generator, ids):
    with pytest.raises(ValueError, match="forced_ids"):
        await generator.generate(forced("s", PROMPT, ids))


@pytest.mark.parametrize("tokens", [-1, len(PROMPT) + 13])
async def test_a_session_cannot_be_rewound_to_what_it_never_had(generator, tokens):
    await generator.generate(turn("s", PROMPT))
    with pytest.raises(ValueError, match="cannot be kept"):
        await generator.rewind("s", tokens)


async def test_an_unknown_busy_or_waiting_session_cannot_be_rewound():
    generator = builtin_generator(SPEC, slots=1, threads=1)
    running, waiting = (asyncio.create_task(generator.generate(turn(name, [20], max_new_tokens=90))) for name in "ab")
    await until(lambda: generator.stats()["waiting"] == 1)
    for name in ("nobody", "a", "b"):
        with pytest.raises(ValueError, match="cannot be rewound"):
            await generator.rewind(name, 0)
    await generator.release("a")
    await asyncio.gather(running, waiting, return_exceptions=True)
    generator.close()
    with pytest.raises(GenerationAborted):
        await generator.rewind("b", 0)
