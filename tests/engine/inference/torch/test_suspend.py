"""A suspended generator stands still between two tokens, and goes on as if nothing had been."""

import asyncio
import threading

import pytest
from torch import Tensor

from engine.cluster.generators import hand_over_weights
from engine.inference.interface import GenerationAborted
from engine.inference.torch.factory import builtin_generator
from engine.inference.torch.generator import TorchGenerator
from engine.models.weights import StateDict
from tests.engine.inference.torch.cast import SPEC, turn, weights

SIXTY = {"seed": 3, "max_new_tokens": 60}


class Gate:
    """Stops the stepping thread in its pass number ``at``, counted from now, until it is opened."""

    def __init__(self, generator: TorchGenerator, monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
        self.reached, self._opened = threading.Event(), threading.Event()
        self._left, self._step = at, generator._decoder.step
        monkeypatch.setattr(generator._decoder, "step", self._gated)

    def open(self) -> None:
        self._opened.set()

    def _gated(self, slots_N: Tensor, tokens_N: Tensor, positions_N: Tensor) -> Tensor:
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            assert self._opened.wait(60)
        return self._step(slots_N, tokens_N, positions_N)


async def suspended_in_the_middle(
    generator: TorchGenerator, monkeypatch: pytest.MonkeyPatch, session: str
) -> asyncio.Task:
    """A turn of 60 tokens that has about ten of them when the generator is suspended."""
    gate = Gate(generator, monkeypatch, at=10)
    running = asyncio.create_task(generator.generate(turn(session, range(20, 81), **SIXTY)))
    await asyncio.to_thread(gate.reached.wait, 60)
    suspending = asyncio.create_task(generator.suspend())
    await asyncio.sleep(0.01)
    assert not suspending.done(), "the pass that is under way is waited for"
    gate.open()
    await suspending
    return running


async def test_a_suspended_turn_stops_at_the_next_token_and_goes_on_to_the_same_bits(
    generator: TorchGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = await generator.generate(turn("undisturbed", range(20, 81), **SIXTY))
    running = await suspended_in_the_middle(generator, monkeypatch, "s")
    stopped = generator.stats()
    late = asyncio.create_task(generator.generate(turn("late", range(20, 81), **SIXTY)))
    await asyncio.sleep(0.1)
    assert generator.stats() == stopped | {"sessions": stopped["sessions"] + 1}
    assert stopped["suspended"] == 1
    assert not running.done()
    await generator.suspend()
    await generator.resume()
    assert await running == undisturbed
    assert await late == undisturbed
    assert generator.stats()["suspended"] == 0


async def test_new_weights_come_between_two_tokens_and_sampling_goes_on(
    generator: TorchGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await suspended_in_the_middle(generator, monkeypatch, "s")
    sampled = int(generator.stats()["sampled_tokens"])
    await generator.load_weights(weights(seed=6), version=2)
    await generator.resume()
    assert (await running).policy_versions == (1,) * sampled + (2,) * (60 - sampled)


async def test_weights_that_are_damaged_leave_no_generator_suspended(generator: TorchGenerator) -> None:
    class Damaged(StateDict):
        def tensors(self):
            raise OSError("the file ends early")

    with pytest.raises(OSError, match="ends early"):
        await hand_over_weights(generator, Damaged(), 2)
    answer = await generator.generate(turn("s", [20, 21]))
    assert set(answer.policy_versions) == {1}


async def test_abort_all_and_close_end_what_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = builtin_generator(SPEC, slots=2, threads=1)
    running = await suspended_in_the_middle(generator, monkeypatch, "s")
    await generator.abort_all()
    with pytest.raises(GenerationAborted):
        await running
    waiting = asyncio.create_task(generator.generate(turn("t", [20, 21])))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    generator.close()
    with pytest.raises(GenerationAborted):
        await waiting
