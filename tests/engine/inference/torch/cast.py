"""A small generator with weights that matter, what it is asked, and the others who ask it."""

import asyncio
import random
from collections.abc import Callable

from engine.inference.torch.generator import TorchGenerator
from engine.models.qwen3 import Qwen3
from engine.models.tokenizer import tokenizer_for
from engine.models.weights import StateDict
from engine.spec.generation import GenerateRequest
from engine.spec.model import BuiltinModel

SPEC = BuiltinModel(context_tokens=128)
VOCABULARY = len(tokenizer_for("characters"))


def weights(seed: int = 5) -> StateDict:
    """As large as after training, so that attention and the samples are far from uniform."""
    state = Qwen3(SPEC, VOCABULARY, seed=seed).state_dict()
    return StateDict((name, tensor * 4 if tensor.dim() > 1 else tensor) for name, tensor in state.items())


def turn(session: str, new_ids, *, seed=11, max_new_tokens=12, stop_ids=(), temperature=1.0, **more) -> GenerateRequest:
    return GenerateRequest(session, tuple(new_ids), max_new_tokens, frozenset(stop_ids), temperature, seed, **more)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not happened():  # noqa: ASYNC110 - the stepping thread sets no event
            await asyncio.sleep(0.001)


async def crowd_member(generator: TorchGenerator, name: str, dice: random.Random) -> None:
    """Someone else: comes when it likes, prompts of any length, several turns, leaves."""
    for number in range(dice.randrange(1, 4)):
        await asyncio.sleep(dice.random() * 0.05)
        ids = [dice.randrange(VOCABULARY) for _ in range(dice.choice([1, 12, 30, 60]))]
        length, heat = dice.randrange(1, 9), dice.choice([0.0, 0.7, 1.0])
        await generator.generate(turn(name, ids, seed=number, max_new_tokens=length, temperature=heat))
    await generator.release(name)
