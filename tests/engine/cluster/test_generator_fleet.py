"""Sessions between several generators: they go on where they moved to, as if they had never moved."""

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random

import pytest

from engine.cluster.generator_client import GeneratorClient, GeneratorServer
from engine.cluster.generator_fleet import GeneratorFleet
from engine.inference.torch.factory import builtin_generator
from engine.inference.torch.generator import TorchGenerator
from engine.spec.generation import Generated, GenerateRequest, TextGenerator, TurnMoved, UnknownSession
from tests.engine.cluster.test_generator_client import Wire
from tests.engine.inference.torch.cast import SPEC, until, weights

PROMPT = tuple(range(20, 40))
OBSERVATION = (41, 42, 43)


def turn(session: str, new_ids: tuple[int, ...] = PROMPT, *, seed: int = 3, tokens: int = 40) -> GenerateRequest:
    return GenerateRequest(session, new_ids, tokens, frozenset(), 1.0, seed)


@pytest.fixture
async def two() -> AsyncIterator[list[TorchGenerator]]:
    """Equal weights, and versions by which one knows who sampled a token."""
    made = [builtin_generator(SPEC, slots=4, threads=1, seed=0) for _ in range(2)]
    for version, generator in enumerate(made, start=1):
        await generator.load_weights(weights(), version)
    yield made
    for generator in made:
        generator.close()


@pytest.fixture
async def alone() -> AsyncIterator[TorchGenerator]:
    made = builtin_generator(SPEC, slots=64, threads=1, seed=0)
    await made.load_weights(weights(), 1)
    yield made
    made.close()


def assert_same(found: Generated, undisturbed: Generated) -> None:
    """What was cached in steps may be read in a chunk: the last bits may differ."""
    assert (found.token_ids, found.stopped_by) == (undisturbed.token_ids, undisturbed.stopped_by)
    assert found.logprobs == pytest.approx(undisturbed.logprobs, abs=1e-4)


@pytest.mark.parametrize("over_wires", [False, True])
async def test_a_turn_that_moves_goes_on_with_its_next_draw_and_nothing_is_sampled_twice(
    two: list[TorchGenerator], alone: TorchGenerator, over_wires: bool
) -> None:
    first, second = two
    undisturbed = [await alone.generate(turn("s")), await alone.generate(turn("s", OBSERVATION, seed=4))]
    clients = [GeneratorClient(Wire(GeneratorServer(generator))) for generator in two]
    members: list[TextGenerator] = [*clients] if over_wires else [*two]
    fleet, streamed = GeneratorFleet(members), list[int]()
    running = asyncio.create_task(fleet.stream(turn("s"), lambda token, logprob: streamed.append(token)))
    await until(lambda: first.stats()["sampled_tokens"] >= 5)
    assert await first.vacate() == 1
    moved = await running
    assert_same(moved, undisturbed[0])
    assert tuple(streamed) == moved.token_ids
    assert set(moved.policy_versions) == {1, 2}
    assert list(moved.policy_versions) == sorted(moved.policy_versions)
    assert first.stats()["sampled_tokens"] + second.stats()["sampled_tokens"] == 40
    assert first.stats()["sessions"] == 0
    assert_same(await fleet.generate(turn("s", OBSERVATION, seed=4)), undisturbed[1])
    await fleet.release("s")
    for client in clients:
        await client.close()
    await until(lambda: second.stats()["sessions"] == 0)


async def test_a_session_whose_generator_left_and_came_back_between_its_turns_is_read_anew(
    two: list[TorchGenerator], alone: TorchGenerator
) -> None:
    """The fleet never heard of it: a turn that went on from nothing would be another one."""
    undisturbed = [await alone.generate(turn("s")), await alone.generate(turn("s", OBSERVATION))]
    fleet = GeneratorFleet(two)
    assert_same(await fleet.generate(turn("s")), undisturbed[0])
    assert await two[0].vacate() == 0
    await two[0].occupy()
    assert_same(await fleet.generate(turn("s", OBSERVATION)), undisturbed[1])


async def test_a_session_that_moved_is_rewound_and_forced_as_any(
    two: list[TorchGenerator], alone: TorchGenerator
) -> None:
    fleet, forced = GeneratorFleet(two), GenerateRequest("s", OBSERVATION, 1, frozenset(), 1.0, 0, (50, 51, 52))
    asked: list[TextGenerator] = [alone, fleet]
    answers = []
    for generator in asked:
        first = await generator.generate(turn("s"))
        if generator is fleet:
            await two[0].vacate()
        await generator.rewind("s", len(PROMPT) + 7)
        answers.append([first, await generator.generate(forced), await generator.generate(turn("s", OBSERVATION))])
    for found, undisturbed in zip(answers[1], answers[0], strict=True):
        assert_same(found, undisturbed)
    with pytest.raises(ValueError, match="cannot be kept"):
        await fleet.rewind("s", 1000)
    with pytest.raises(UnknownSession):
        await fleet.rewind("nobody", 0)


async def test_turns_that_wait_for_a_slot_go_to_a_generator_that_came_back(two: list[TorchGenerator]) -> None:
    first, second = two
    await first.vacate()
    await second.suspend()
    fleet = GeneratorFleet(two)
    turns = [asyncio.create_task(fleet.generate(turn(f"s{number}"))) for number in range(8)]
    await until(lambda: second.stats()["waiting"] == 4)
    await first.occupy()
    fleet.welcome()
    assert await second.move_waiting() == 4
    by_first = [task for task in turns if task in (await asyncio.wait(turns, return_when="FIRST_COMPLETED"))[0]]
    assert {version for task in by_first for version in task.result().policy_versions} == {1}
    await second.resume()
    answers = await asyncio.gather(*turns)
    assert sum(answer.policy_versions[0] == 1 for answer in answers) == 4


async def test_a_turn_without_room_leaves_its_session_as_it_was(two: list[TorchGenerator]) -> None:
    fleet = GeneratorFleet(two)
    longest = (20,) * SPEC.context_tokens
    refused = await fleet.generate(turn("s", longest))
    assert (refused.token_ids, refused.stopped_by) == ((), "context")
    assert (await fleet.generate(turn("s", tokens=4))).stopped_by == "length"


async def test_a_generator_alone_refuses_what_only_a_fleet_may_ask(alone: TorchGenerator) -> None:
    with pytest.raises(UnknownSession):
        await alone.generate(GenerateRequest("s", PROMPT, 4, frozenset(), 1.0, 1, continues=True))
    await alone.vacate()
    with pytest.raises(TurnMoved):
        await alone.generate(turn("s"))


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_moves_when_every_turn_is_the_one_it_would_have_been(
    two: list[TorchGenerator], alone: TorchGenerator, seed: int
) -> None:
    """Twelve episodes over eight slots, generators that come and go, and members that are replaced by themselves."""
    undisturbed = [[answer async for answer in _episode(alone, number)] for number in range(12)]
    fleet, random = GeneratorFleet(two), Random(seed)
    found: dict[int, list[Generated]] = {}

    async def play(number: int) -> None:
        found[number] = [answer async for answer in _episode(fleet, number, pause=random.random)]

    playing = [asyncio.create_task(play(number)) for number in range(12)]
    while not all(task.done() for task in playing):
        await asyncio.sleep(random.random() * 0.03)
        await two[0].vacate()
        await asyncio.sleep(random.random() * 0.03)
        await two[0].occupy()
        if random.random() < 0.8:
            fleet.welcome()
            await two[1].move_waiting()
    await asyncio.gather(*playing)
    for number, answers in enumerate(undisturbed):
        for one, other in zip(found[number], answers, strict=True):
            assert_same(one, other)
    moved = [answer for answers in found.values() for answer in answers if len(set(answer.policy_versions)) > 1]
    assert moved, "some turn began in one generator and ended in the other"
    sampled = sum(len(answer.token_ids) for answers in undisturbed for answer in answers)
    assert sum(generator.stats()["sampled_tokens"] for generator in two) == sampled
    await until(lambda: [generator.stats()["sessions"] for generator in two] == [0, 0])


async def _episode(
    generator: TextGenerator, number: int, pause: Callable[[], float] = lambda: 0.0
) -> AsyncIterator[Generated]:
    session, prompt = f"episode-{number}", (*PROMPT, 44 + number)
    for at in range(3):
        yield await generator.generate(turn(session, OBSERVATION if at else prompt, seed=100 * number + at, tokens=15))
        await asyncio.sleep(pause() * 0.02)
    await generator.release(session)
