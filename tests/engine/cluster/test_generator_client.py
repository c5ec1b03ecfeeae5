"""Many episodes talk to a generator elsewhere in few messages, and none of them is left waiting."""

import asyncio
from collections.abc import Sequence

import pytest

from engine.cluster.generator_client import (
    GeneratorCall,
    GeneratorClient,
    GeneratorLost,
    GeneratorReply,
    GeneratorServer,
)
from engine.inference.torch.factory import builtin_generator
from engine.inference.torch.generator import TorchGenerator
from engine.spec.generation import Generated, GenerateRequest
from engine.spec.model import BuiltinModel

MODEL = BuiltinModel(
    layers=1, hidden_size=32, heads=2, kv_heads=1, head_dim=16, intermediate_size=64, context_tokens=64
)


def request(session: str, *, tokens: int = 8, seed: int = 1) -> GenerateRequest:
    return GenerateRequest(session, (2, 4, 20, 5), tokens, frozenset({3}), 1.0, seed)


class Wire:
    """What Ray carries, without Ray: counts messages, and can break."""

    def __init__(self, server: GeneratorServer, caller: str = "worker") -> None:
        self._server, self._caller = server, caller
        self.submissions: list[int] = []
        self.broken = asyncio.Event()

    async def submit(self, requests: Sequence[GeneratorCall], released: Sequence[str]) -> None:
        if self.broken.is_set():
            raise ConnectionError("the generator died")
        self.submissions.append(len(requests))
        await self._server.submit(self._caller, requests, released)

    async def replies(self) -> list[GeneratorReply]:
        answering, breaking = (
            asyncio.ensure_future(item) for item in (self._server.replies(self._caller), self.broken.wait())
        )
        done, pending = await asyncio.wait({answering, breaking}, return_when=asyncio.FIRST_COMPLETED)
        for item in pending:
            item.cancel()
        if breaking in done:
            raise ConnectionError("the generator died")
        return answering.result()

    async def disconnect(self) -> None:
        await self._server.disconnect(self._caller)


@pytest.fixture
def generator():
    generator = builtin_generator(MODEL, slots=4, threads=1)
    yield generator
    generator.close()


async def test_answers_over_the_link_equal_direct_ones_and_questions_travel_together(generator: TorchGenerator) -> None:
    direct = [await generator.generate(request(f"direct-{seed}", seed=seed)) for seed in range(4)]
    for seed in range(4):
        await generator.release(f"direct-{seed}")
    wire = Wire(GeneratorServer(generator))
    client = GeneratorClient(wire)
    linked = await asyncio.gather(*(client.generate(request(f"linked-{seed}", seed=seed)) for seed in range(4)))
    assert linked == direct
    assert wire.submissions == [4]
    await client.close()


async def test_a_released_session_gives_its_slot_to_the_next(generator: TorchGenerator) -> None:
    client = GeneratorClient(Wire(GeneratorServer(generator)))

    async def episode(number: int) -> Generated:
        generated = await client.generate(request(f"s{number}"))
        await client.release(f"s{number}")
        return generated

    assert len({item.token_ids for item in await asyncio.gather(*(episode(number) for number in range(12)))}) == 1
    await client.close()
    await generator.abort_all()
    assert generator.stats()["sessions"] == 0


async def test_a_dead_generator_is_told_to_everyone_who_waits_and_to_all_who_ask_later(
    generator: TorchGenerator,
) -> None:
    wire = Wire(GeneratorServer(generator))
    client = GeneratorClient(wire)
    waiting = [asyncio.create_task(client.generate(request(f"s{number}", tokens=50))) for number in range(9)]
    await asyncio.sleep(0.01)
    wire.broken.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert any(isinstance(result, GeneratorLost) for result in results)
    assert all(isinstance(result, Generated | GeneratorLost) for result in results)
    with pytest.raises(GeneratorLost, match="the generator died"):
        await client.generate(request("late"))
    await client.release("late")
    await client.close()


async def test_an_error_of_one_request_reaches_only_the_one_who_asked(generator: TorchGenerator) -> None:
    client = GeneratorClient(Wire(GeneratorServer(generator)))
    good, bad = await asyncio.gather(
        client.generate(request("good")), client.generate(request("bad", tokens=0)), return_exceptions=True
    )
    assert isinstance(good, Generated)
    assert isinstance(bad, ValueError)
    await client.close()


async def test_a_dead_worker_leaves_no_slot_taken(generator: TorchGenerator) -> None:
    server = GeneratorServer(generator)
    dead = GeneratorClient(Wire(server, "dead"))
    for number in range(4):
        await dead.generate(request(f"dead-{number}"))  # and never releases: all slots are taken
    await server.disconnect("dead")
    alive = GeneratorClient(Wire(server, "alive"))
    assert await asyncio.wait_for(alive.generate(request("alive")), 60)
    await alive.close()


async def test_an_episode_cancelled_before_its_question_left_takes_no_slot(generator: TorchGenerator) -> None:
    client = GeneratorClient(Wire(GeneratorServer(generator)))
    task = asyncio.create_task(client.generate(request("cancelled")))
    await asyncio.sleep(0)
    task.cancel()
    await client.release("cancelled")
    await asyncio.wait({task})
    await client.generate(request("other"))
    assert generator.stats()["sessions"] == 1
    await client.close()


async def test_a_session_is_rewound_over_the_link_and_its_errors_come_back(generator: TorchGenerator) -> None:
    client = GeneratorClient(Wire(GeneratorServer(generator)))
    first = await client.generate(request("s"))
    await client.rewind("s", 0)
    assert await client.generate(request("s")) == first
    with pytest.raises(ValueError, match="cannot be kept"):
        await client.rewind("s", 1000)
    await client.close()


async def test_a_rewind_learns_that_the_generator_is_gone(generator: TorchGenerator) -> None:
    wire = Wire(GeneratorServer(generator))
    client = GeneratorClient(wire)
    await client.generate(request("s"))
    wire.broken.set()
    with pytest.raises(GeneratorLost):
        await client.rewind("s", 0)
    await client.close()


async def test_tokens_of_a_streamed_turn_travel_while_it_is_sampled(generator: TorchGenerator) -> None:
    whole = await generator.generate(request("direct", tokens=40))
    await generator.release("direct")
    wire = Wire(GeneratorServer(generator))
    client = GeneratorClient(wire)
    heard: list[tuple[int, float]] = []
    begun = asyncio.Event()

    def on_token(token: int, logprob: float) -> None:
        heard.append((token, logprob))
        begun.set()

    await generator.suspend()
    turn = asyncio.ensure_future(client.stream(request("linked", tokens=40), on_token))
    beside = asyncio.ensure_future(client.generate(request("beside", tokens=40)))
    await asyncio.sleep(0)
    assert heard == []
    await generator.resume()
    assert await turn == whole == await beside
    assert heard == list(zip(whole.token_ids, whole.logprobs, strict=True))
    await client.close()


async def test_a_stream_whose_generator_is_lost_raises_and_tells_no_more(generator: TorchGenerator) -> None:
    wire = Wire(GeneratorServer(generator))
    client = GeneratorClient(wire)
    heard: list[int] = []
    await generator.suspend()
    turn = asyncio.ensure_future(client.stream(request("linked"), lambda token, logprob: heard.append(token)))
    await asyncio.sleep(0.05)
    wire.broken.set()
    with pytest.raises(GeneratorLost):
        await turn
    await generator.resume()
    await asyncio.sleep(0.2)
    assert heard == []
    await client.close()
