"""Sessions divided among processes sample what they would anywhere, and lose nothing with a process."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from engine.cluster.generators import hand_over_weights, reports_of, servers_of
from engine.inference.interface import GenerationAborted, NonFiniteLogits
from engine.inference.torch.divided import DecodersLost, DividedGenerator, NoRoomForDecoders
from engine.inference.torch.factory import builtin_generator, torch_generator
from engine.inference.torch.generator import TorchGenerator
from engine.inference.torch.memory import PROCESS_BYTES, divided_bytes, lacking_memory, memory_of
from engine.models.architecture import Architecture
from engine.models.weights import StateDict
from engine.spec.generation import Generated, UnknownSession
from engine.spec.model import PretrainedModel
from engine.spec.resources import Resources
from tests.engine.inference.torch.cast import SPEC, VOCABULARY, turn, until, weights

SLOTS = 4
"""Those of each decoder, and of the generator that it is compared with."""
LONG = {"max_new_tokens": 60}
ARCHITECTURE = Architecture.of_builtin(SPEC, VOCABULARY)


@pytest.fixture
async def divided() -> AsyncIterator[DividedGenerator]:
    made = torch_generator(SPEC, Resources(decoders=2, kv_slots=2 * SLOTS, threads=1), seed=0)
    assert isinstance(made, DividedGenerator)
    await hand_over_weights(made, weights(), 1)
    yield made
    made.close()


@pytest.fixture
async def whole() -> AsyncIterator[TorchGenerator]:
    made = builtin_generator(SPEC, slots=SLOTS, threads=1, seed=0)
    await hand_over_weights(made, weights(), 1)
    yield made
    made.close()


async def episode(generator: DividedGenerator | TorchGenerator, number: int, turns: int = 2) -> list[Generated]:
    """Each has a prompt, seeds and lengths of its own."""
    ids = [(7 * number + place) % VOCABULARY for place in range(5 + 3 * number)]
    answers = [
        await generator.generate(turn(f"{number}", ids, seed=100 * number + place, max_new_tokens=8))
        for place in range(turns)
    ]
    await generator.release(f"{number}")
    return answers


def pids(generator: DividedGenerator) -> list[int]:
    return [place.process.pid for place in generator._places]


def kill(generator: DividedGenerator, decoder: int) -> None:
    os.kill(pids(generator)[decoder], signal.SIGKILL)


async def test_tokens_are_those_of_an_undivided_generator_whichever_decoder_a_session_is_in(
    divided: DividedGenerator, whole: TorchGenerator
) -> None:
    ours = await asyncio.gather(*(episode(divided, number) for number in range(12)))
    theirs = await asyncio.gather(*(episode(whole, number) for number in range(12)))
    assert ours == theirs
    assert all(server.sampled_tokens for server in await servers_of(divided)), "each decoder has sampled some of it"
    assert divided.stats()["sampled_tokens"] == whole.stats()["sampled_tokens"]
    assert divided.stats()["sessions"] == 0


async def test_a_turn_of_a_session_that_nobody_knows_is_refused_and_begins_nothing(divided: DividedGenerator) -> None:
    with pytest.raises(UnknownSession):
        await divided.generate(turn("unknown", (4, 5), seed=1, continues=True))
    with pytest.raises(UnknownSession):
        await divided.rewind("unknown", 0)
    assert divided.stats()["sessions"] == 0


async def test_rollouts_of_a_killed_decoder_are_played_again_to_the_same_bits(
    divided: DividedGenerator, whole: TorchGenerator
) -> None:
    async def two_turns(generator: DividedGenerator | TorchGenerator, *, kills: bool) -> list[Generated]:
        first = [generator.generate(turn(f"{n}", range(3, 9 + n), seed=n)) for n in range(SLOTS)]
        answers = [*await asyncio.gather(*first)]
        await generator.rewind("1", len(range(3, 10)) + 5)
        goes_on = [turn(f"{n}", (4, 5), seed=n, continues=True, **LONG) for n in range(SLOTS)]
        second = [asyncio.ensure_future(generator.generate(request)) for request in goes_on]
        if kills:
            assert isinstance(generator, DividedGenerator)
            await until(lambda: sum(place.process.in_hand for place in generator._places) == SLOTS)
            kill(generator, 0)
        return [*answers, *await asyncio.gather(*second)]

    assert await two_turns(divided, kills=True) == await two_turns(whole, kills=False)
    ((level, message),) = reports_of(divided)
    assert level == "warning"
    assert message.startswith("decoder 0 ended with code -9")
    assert [server.restarts for server in await servers_of(divided)] == [1, 0]
    assert divided.stats()["sessions"] == SLOTS


async def test_a_decoder_killed_while_suspended_comes_back_suspended_and_with_the_weights(
    divided: DividedGenerator, whole: TorchGenerator
) -> None:
    await divided.suspend()
    kill(divided, 0)
    kill(divided, 1)
    pending = [asyncio.create_task(divided.generate(turn(f"{n}", range(6), seed=n))) for n in range(4)]
    await until(lambda: divided.stats()["restarts"] == 2 and all(place.ready.is_set() for place in divided._places))
    await divided.load_weights(weights(6), 2)
    await asyncio.sleep(0.1)
    assert divided.stats()["sampled_tokens"] == 0
    await divided.resume()
    answers = await asyncio.gather(*pending)
    await hand_over_weights(whole, weights(6), 2)
    assert answers == [await whole.generate(turn(f"{n}", range(6), seed=n)) for n in range(4)]
    assert {version for answer in answers for version in answer.policy_versions} == {2}


async def test_weights_that_do_not_fit_leave_the_old_ones_in_every_decoder(divided: DividedGenerator) -> None:
    before = await asyncio.gather(*(episode(divided, number) for number in range(4)))
    narrow = StateDict((name, tensor[:1]) for name, tensor in weights().items())
    with pytest.raises(ValueError, match="the architecture needs"):
        await divided.load_weights(narrow, 2)
    kill(divided, 0)
    assert await asyncio.gather(*(episode(divided, number) for number in range(4))) == before
    assert divided.stats()["version"] == 1


async def test_a_disk_without_room_for_the_weights_is_named_with_the_remedy(
    divided: DividedGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await episode(divided, 0)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**40, 2**40, 1024))
        with pytest.raises(NoRoomForDecoders, match=r"resources\.decoders.* MiB are free; set TMPDIR .* decoders = 1"):
            await divided.load_weights(weights(6), 2)
    assert await episode(divided, 0) == before
    assert divided.stats()["version"] == 1


async def test_what_a_decoder_refuses_is_raised_here_and_its_session_goes_on(divided: DividedGenerator) -> None:
    first = await divided.generate(turn("s", range(5)))
    with pytest.raises(ValueError, match="new_ids is empty"):
        await divided.generate(turn("s", ()))
    with pytest.raises(ValueError, match="cannot be kept"):
        await divided.rewind("s", 5 + len(first.token_ids) + 1)
    assert (await divided.generate(turn("s", (1, 2)))).token_ids
    broken = StateDict((name, tensor * float("nan")) for name, tensor in weights().items())
    await divided.load_weights(broken, 3)
    with pytest.raises(NonFiniteLogits, match="policy version 3 "):
        await divided.generate(turn("t", range(5)))


async def test_all_sessions_end_with_abort_all_and_with_close(divided: DividedGenerator) -> None:
    processes = [psutil.Process(pid) for pid in pids(divided)]
    await divided.suspend()
    pending = [asyncio.create_task(divided.generate(turn(f"{n}", range(6)))) for n in range(12)]
    await until(lambda: sum(place.process.in_hand for place in divided._places) == 12)
    await divided.abort_all()
    for ended in pending:
        with pytest.raises(GenerationAborted):
            await ended
    assert divided.stats()["sessions"] == 0
    last = asyncio.create_task(divided.generate(turn("last", range(6))))
    await until(lambda: sum(place.process.in_hand for place in divided._places) == 1)
    divided.close()
    with pytest.raises(GenerationAborted):
        await last
    with pytest.raises(GenerationAborted):
        await divided.generate(turn("later", range(6)))
    assert not any(process.is_running() for process in processes)
    assert not divided._scratch.exists()


async def test_a_cancelled_turn_gives_its_slot_back(divided: DividedGenerator) -> None:
    await divided.suspend()
    crowd = [asyncio.create_task(divided.generate(turn(f"{n}", range(6)))) for n in range(2 * SLOTS)]
    await until(lambda: sum(place.process.in_hand for place in divided._places) == 2 * SLOTS)
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    await divided.resume()
    assert await asyncio.gather(*(episode(divided, number) for number in range(2 * SLOTS)))
    assert divided.stats()["sessions"] == divided.stats()["waiting"] == 0


async def test_streamed_tokens_are_told_once_each_though_the_decoder_dies(divided: DividedGenerator) -> None:
    reported: list[tuple[int, float]] = []

    def on_token(token: int, logprob: float) -> None:
        reported.append((token, logprob))
        if len(reported) == 3:
            for decoder in range(2):
                kill(divided, decoder)

    answer = await divided.stream(turn("s", range(6), **LONG), on_token)
    assert reported == list(zip(answer.token_ids, answer.logprobs, strict=True))


async def test_decoders_that_cannot_begin_end_the_attempt_by_name(tmp_path: Path) -> None:
    nothing = PretrainedModel(path=str(tmp_path / "nothing"), context_tokens=64)
    from engine.inference.torch.decoder_messages import Begin
    from engine.inference.torch.decoder_process import DecoderProcess

    begin = Begin(nothing, Resources(kv_slots=4), 0)
    lost = DividedGenerator(lambda number, ended: DecoderProcess(number, begin, ended), decoders=2, slots=4)
    with pytest.raises(DecodersLost, match="decoder 0 cannot begin: .*nothing"):
        await lost.generate(turn("s", range(5)))
    lost.close()


def test_decoders_cost_their_processes_and_preflight_says_so() -> None:
    one = memory_of(ARCHITECTURE, context_tokens=128, slots=32).total
    assert divided_bytes(ARCHITECTURE, context_tokens=128, slots=64, decoders=2) == 2 * (one + PROCESS_BYTES)
    shape = {"context_tokens": 128, "slots": 64, "dtype": "float32", "decoders": 2}
    assert lacking_memory(ARCHITECTURE, **shape, free_bytes=2 * (one + PROCESS_BYTES)) is None
    problem = lacking_memory(ARCHITECTURE, **shape, free_bytes=2 * (one + PROCESS_BYTES) - 1)
    assert problem is not None
    assert "2 times" in problem.message
    assert "lower resources.decoders" in problem.remedy


@pytest.mark.parametrize(
    "resources",
    [
        {"decoders": 2, "device": "cuda"}, {"decoders": 3, "kv_slots": 2}, {"decoders": 2, "generator": "sglang"},
        {"decoders": 2, "generators": 2},
    ],
)  # fmt: skip
def test_decoders_that_make_no_sense_are_refused(resources: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="decoders"):
        Resources.model_validate(resources)
