"""Rollouts inside TRL sample with Hugging Face's ``generate``; these hold them to our own generator's meaning."""

import asyncio
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.peers.lockstep import LockstepGenerator
from engine.inference.torch.factory import builtin_generator
from engine.models.qwen3 import Qwen3, save_pretrained
from engine.models.tokenizer import tokenizer_for
from engine.spec.generation import Generated, GenerateRequest, TextGenerator
from engine.spec.model import BuiltinModel

SPEC = BuiltinModel(layers=1, hidden_size=16, heads=2, kv_heads=1, head_dim=8, intermediate_size=16, context_tokens=48)
PROMPTS = [(2, 4, 30, 31, 5), (2, 4, 29, 5), (2, 4, 28, 27, 26, 25, 5)]
OBSERVATION = (8, 40, 9, 5)


@pytest.fixture
def peer(tmp_path: Path) -> PreTrainedModel:
    tokenizer = tokenizer_for("characters")
    save_pretrained(Qwen3(SPEC, len(tokenizer), seed=3), tmp_path, tokenizer)
    return AutoModelForCausalLM.from_pretrained(tmp_path)


def request(session: str, new_ids: tuple[int, ...], stop_ids: frozenset[int] = frozenset()) -> GenerateRequest:
    return GenerateRequest(session, new_ids, max_new_tokens=12, stop_ids=stop_ids, temperature=0.0, seed=1)


async def two_turns(
    generator: TextGenerator, session: str, prompt: tuple[int, ...], stop_ids: frozenset[int]
) -> list[Generated]:
    first = await generator.generate(request(session, prompt, stop_ids))
    second = await generator.generate(request(session, OBSERVATION, stop_ids))
    await generator.release(session)
    return [first, second]


async def play(generator: TextGenerator, stop_ids: frozenset[int]) -> list[list[tuple[tuple[int, ...], str]]]:
    episodes = await asyncio.gather(
        *(two_turns(generator, f"episode-{i}", prompt, stop_ids) for i, prompt in enumerate(PROMPTS))
    )
    return [[(turn.token_ids, turn.stopped_by) for turn in turns] for turns in episodes]


async def test_it_samples_what_our_generator_samples_over_two_turns(peer: PreTrainedModel) -> None:
    ours = builtin_generator(SPEC, slots=4, threads=1, seed=3)
    free = await play(ours, frozenset())
    # A token from the middle of what was written is made a stop token, so that turns end at different lengths.
    stop_ids = frozenset({free[0][0][0][5]})
    expected = await play(ours, stop_ids)
    ours.close()
    assert "stop" in {reason for turns in expected for _, reason in turns}

    for wanted, stops in ((free, frozenset()), (expected, stop_ids)):
        lockstep = LockstepGenerator(peer, pad=0, context_tokens=SPEC.context_tokens, episodes=len(PROMPTS))
        assert await asyncio.wait_for(play(lockstep, stops), 60) == wanted


async def test_an_episode_that_ends_early_holds_nobody_up(peer: PreTrainedModel) -> None:
    lockstep = LockstepGenerator(peer, pad=0, context_tokens=SPEC.context_tokens, episodes=2)
    waiting = asyncio.create_task(lockstep.generate(request("stays", PROMPTS[0])))
    await asyncio.sleep(0)
    assert not waiting.done()
    await lockstep.release("never asked")
    assert len((await asyncio.wait_for(waiting, 60)).token_ids) == 12


async def test_a_full_context_ends_the_turn(peer: PreTrainedModel) -> None:
    lockstep = LockstepGenerator(peer, pad=0, context_tokens=10, episodes=1)
    generated = await lockstep.generate(request("long", PROMPTS[2]))
    assert (len(generated.token_ids), generated.stopped_by) == (3, "context")
