"""A pass for few sessions waits for those whose tools are at work, and for nobody else."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from pydantic import ValidationError

from engine.inference.interface import GenerationAborted
from engine.inference.torch.divided import DividedGenerator
from engine.inference.torch.factory import builtin_generator, torch_generator
from engine.inference.torch.generator import TorchGenerator
from engine.spec.generation import Generated
from engine.spec.resources import Resources
from tests.engine.inference.torch.cast import SPEC, turn, until

FOR_EVER_S = 3600.0
TOKENS = 6
SLOTS = 16
Made = Callable[[float], AbstractAsyncContextManager[TorchGenerator]]


@asynccontextmanager
async def delayed(batch_delay_s: float) -> AsyncIterator[TorchGenerator]:
    made = builtin_generator(SPEC, slots=SLOTS, threads=1, seed=0, batch_delay_s=batch_delay_s)
    try:
        yield made
    finally:
        made.close()


async def sampled(generator: TorchGenerator | DividedGenerator, session: str, number: int) -> Generated:
    new_ids = range(20, 26) if number else range(20, 60)
    request = turn(session, new_ids, seed=number, max_new_tokens=TOKENS, continues=bool(number))
    return await generator.generate(request)


async def passes_when_one_waits(generator: TorchGenerator | DividedGenerator) -> tuple[float, list[Generated]]:
    """The steps that two second turns take, of which one comes when the other is under way."""
    await asyncio.gather(sampled(generator, "early", 0), sampled(generator, "late", 0))
    before = generator.stats()["steps"]
    early = asyncio.create_task(sampled(generator, "early", 1))
    await asyncio.sleep(0.05)
    late = await sampled(generator, "late", 1)
    return generator.stats()["steps"] - before, [await early, late]


async def test_few_sample_when_the_last_one_is_back_and_sample_the_same() -> None:
    async with delayed(0.0) as generator:
        _, at_once = await passes_when_one_waits(generator)
    async with delayed(FOR_EVER_S) as generator:
        steps, together = await passes_when_one_waits(generator)
    assert together == at_once
    assert steps == len(range(20, 26)) + TOKENS, "both stepped in one pass each time: the last token and what came in"


async def test_who_is_released_is_waited_for_no_longer() -> None:
    async with delayed(FOR_EVER_S) as generator:
        await asyncio.gather(sampled(generator, "here", 0), sampled(generator, "gone", 0))
        here = asyncio.create_task(sampled(generator, "here", 1))
        await until(lambda: generator.stats()["sessions"] == 2)
        await generator.release("gone")
        assert len((await here).token_ids) == TOKENS


async def test_a_quarter_of_the_slots_is_not_few() -> None:
    async with delayed(FOR_EVER_S) as generator:
        members = [f"s{number}" for number in range(SLOTS)]
        await asyncio.gather(*(sampled(generator, name, 0) for name in members))
        back = await asyncio.gather(*(sampled(generator, name, 1) for name in members[: SLOTS // 4]))
        assert [len(each.token_ids) for each in back] == [TOKENS] * len(back)


async def test_nobody_waits_where_all_sample() -> None:
    async with delayed(FOR_EVER_S) as generator:
        assert len((await sampled(generator, "alone", 0)).token_ids) == TOKENS


async def test_who_waits_obeys() -> None:
    async with delayed(FOR_EVER_S) as generator:
        await asyncio.gather(sampled(generator, "here", 0), sampled(generator, "elsewhere", 0))
        here = asyncio.create_task(sampled(generator, "here", 1))
        await generator.suspend()
        await generator.resume()
        await generator.abort_all()
        with pytest.raises(GenerationAborted):
            await here


@pytest.mark.parametrize("decoders", [1, 2])
async def test_a_runs_generator_delays_as_its_resources_say(decoders: int) -> None:
    def resources(batch_delay_ms: float) -> Resources:
        return Resources(batch_delay_ms=batch_delay_ms, decoders=decoders, kv_slots=SLOTS * decoders, threads=1)

    steps = []
    for batch_delay_ms in (0.0, 1000.0):
        generator = torch_generator(SPEC, resources(batch_delay_ms), seed=0)
        try:
            taken, _ = await passes_when_one_waits(generator)
        finally:
            generator.close()
        steps.append(taken)
    assert steps[1] < steps[0]


@pytest.mark.parametrize("delay", [-1, 1001, float("nan"), "soon"])
def test_no_other_number_is_a_delay(delay: object) -> None:
    with pytest.raises(ValidationError, match="batch_delay_ms"):
        Resources.model_validate({"batch_delay_ms": delay})


def test_servers_that_batch_by_themselves_take_no_delay() -> None:
    with pytest.raises(ValidationError, match="decides by itself"):
        Resources.model_validate({"generator": "sglang", "batch_delay_ms": 5})
