"""What is sampled and what its log-probs are, where top-k, top-p and min-p cut the distribution."""

import asyncio
import random
from collections import Counter

import pytest
import torch

from engine.inference.torch import memory
from engine.inference.torch.factory import builtin_generator
from engine.models.qwen3 import Qwen3
from engine.spec.generation import Truncation
from tests.engine.algorithms.test_truncation import kept_by_definition
from tests.engine.inference.torch.cast import SPEC, VOCABULARY, crowd_member, turn, weights

PROMPT = tuple(range(20, 60))
TRUNCATIONS = [
    Truncation(top_p=0.6),
    Truncation(top_k=3),
    Truncation(min_p=0.2),
    Truncation(top_k=20, top_p=0.9, min_p=0.05),
]


def next_logits(prompt=PROMPT):
    model = Qwen3(SPEC, VOCABULARY)
    model.load_state_dict(weights())
    with torch.no_grad():
        return model(torch.tensor([list(prompt)]))[0, -1]


def distribution(logits, temperature, truncation):
    """Probabilities by token, in Python's own floats."""
    scaled = (logits / temperature).tolist()
    kept = sorted(kept_by_definition(scaled, truncation.top_k, truncation.top_p, truncation.min_p))
    return dict(zip(kept, torch.tensor(scaled).double()[kept].softmax(0).tolist(), strict=True))


@pytest.mark.parametrize("temperature", [0.7, 2.0])
@pytest.mark.parametrize("truncation", TRUNCATIONS)
async def test_tokens_come_as_often_as_the_cut_distribution_says(generator, truncation, temperature):
    expected = distribution(next_logits(), temperature, truncation)
    assert 1 < len(expected) < VOCABULARY or temperature == 0.7
    draws = 2000
    how = {"max_new_tokens": 1, "temperature": temperature, "truncation": truncation}
    answers = await asyncio.gather(*(_one_token(generator, f"s{seed}", seed, how) for seed in range(draws)))
    counts = Counter(answers)
    assert set(counts) <= set(expected)
    for token, probability in expected.items():
        deviation = (draws * probability * (1 - probability)) ** 0.5
        assert abs(counts[token] - draws * probability) < 5 * deviation + 1


async def _one_token(generator, name, seed, how):
    answer = await generator.generate(turn(name, PROMPT, seed=seed, **how))
    await generator.release(name)
    return answer.token_ids[0]


@pytest.mark.parametrize("truncation", TRUNCATIONS)
async def test_logprobs_of_what_is_kept_are_renormalised_and_others_are_not(generator, truncation):
    how = {"temperature": 0.8, "truncation": truncation}
    plain = await generator.generate(turn("plain", PROMPT, **how))
    cut = await generator.generate(turn("cut", PROMPT, **how, logprob_temperature=0.8, logprobs_truncated=True))
    assert plain.token_ids == cut.token_ids  # how log-probs are told changes nothing of what is sampled
    ids = list(PROMPT)
    for token, logp_plain, logp_cut in zip(plain.token_ids, plain.logprobs, cut.logprobs, strict=True):
        logits = next_logits(ids)
        assert logp_plain == pytest.approx(logits.log_softmax(-1)[token].item(), abs=1e-4)
        assert logp_cut == pytest.approx(
            torch.tensor(distribution(logits, 0.8, truncation)[token]).log().item(), abs=1e-3
        )
        ids.append(token)


async def test_a_forced_token_that_would_be_cut_counts_as_kept(generator):
    truncation = Truncation(top_k=2)
    logits = next_logits()
    unlikely = int(logits.argmin())
    answer = await generator.generate(
        turn("s", PROMPT, forced_ids=(unlikely,), truncation=truncation, logprobs_truncated=True)
    )
    kept = [*logits.topk(2).indices.tolist(), unlikely]
    expected = (logits[unlikely] - logits[kept].logsumexp(0)).item()
    assert answer.logprobs[0] == pytest.approx(expected, abs=1e-3)


async def test_one_token_kept_is_greedy_and_certain(generator):
    greedy = await generator.generate(turn("greedy", PROMPT, temperature=0.0))
    for name, truncation in {"k": Truncation(top_k=1), "p": Truncation(top_p=1e-6), "m": Truncation(min_p=1.0)}.items():
        answer = await generator.generate(turn(name, PROMPT, truncation=truncation, logprobs_truncated=True))
        assert answer.token_ids == greedy.token_ids
        assert set(answer.logprobs) == {0.0}


async def test_greedy_takes_no_notice_of_a_truncation(generator):
    greedy = await generator.generate(turn("greedy", PROMPT, temperature=0.0))
    cut = await generator.generate(turn("cut", PROMPT, temperature=0.0, truncation=Truncation(top_k=1, top_p=0.1)))
    assert cut == greedy


async def test_a_truncation_that_is_off_or_keeps_all_changes_no_token(generator):
    plain = await generator.generate(turn("plain", PROMPT))
    off = await generator.generate(turn("off", PROMPT, truncation=Truncation(), logprobs_truncated=True))
    wide = await generator.generate(turn("wide", PROMPT, truncation=Truncation(top_k=10**9)))
    assert off == wide == plain


async def test_neighbours_who_truncate_change_no_bit_and_who_truncates_depends_on_nobody(generator):
    def requests(name):
        cut = {"truncation": Truncation(top_k=9, top_p=0.8), "logprobs_truncated": True}
        return turn(f"{name} whole", PROMPT, seed=3), turn(f"{name} cut", PROMPT, seed=3, **cut)

    alone = [await generator.generate(request) for request in requests("alone")]
    dice = random.Random(1)
    others = [
        generator.generate(turn(f"o{n}", PROMPT[: 5 + n], seed=n, truncation=dice.choice(TRUNCATIONS)))
        for n in range(30)
    ]
    crowd = [crowd_member(generator, f"c{n}", dice) for n in range(20)]
    together = await asyncio.gather(*map(generator.generate, requests("together")), *others, *crowd)
    assert together[:2] == alone
    assert alone[0].token_ids != alone[1].token_ids


@pytest.mark.parametrize(
    "bad", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": float("nan")}, {"min_p": -0.1}, {"min_p": 1.5}]
)
def test_a_truncation_that_makes_no_sense_is_refused_by_name_and_value(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        Truncation(**bad)


async def test_truncated_logprobs_at_another_temperature_are_refused(generator):
    with pytest.raises(ValueError, match="logprob_temperature = 1.0"):
        await generator.generate(turn("s", PROMPT, temperature=0.5, logprobs_truncated=True))


@pytest.mark.parametrize("rows", [1, 3, 4])
async def test_logits_in_blocks_give_every_slot_its_own(monkeypatch, rows):
    """Seven slots in blocks of any size: the answers are those of slots that stand in one block, but for rounding."""
    monkeypatch.setattr(memory, "LOGITS_BYTES", rows * VOCABULARY * memory.BYTES_PER_LOGIT)
    blocks = builtin_generator(SPEC, slots=7, threads=1)
    assert blocks._layout.logit_rows <= rows
    monkeypatch.undo()
    whole = builtin_generator(SPEC, slots=7, threads=1)
    assert whole._layout.logit_rows == 7
    answers = []
    for generator in (blocks, whole):
        await generator.load_weights(weights(), version=1)
        cut = {"truncation": TRUNCATIONS[3]}
        turns = [turn(f"s{n}", PROMPT[: 10 + n], seed=n, **(cut if n % 2 else {})) for n in range(7)]
        answers.append(await asyncio.gather(*map(generator.generate, turns)))
    for in_blocks, in_one in zip(*answers, strict=True):
        assert in_blocks.token_ids == in_one.token_ids
        assert in_blocks.logprobs == pytest.approx(in_one.logprobs, abs=1e-4)
    for generator in (blocks, whole):
        generator.close()


async def test_in_blocks_too_company_changes_no_bit(monkeypatch):
    monkeypatch.setattr(memory, "LOGITS_BYTES", 3 * VOCABULARY * memory.BYTES_PER_LOGIT)
    generator = builtin_generator(SPEC, slots=7, threads=1)
    await generator.load_weights(weights(), version=1)
    alone = await generator.generate(turn("alone", PROMPT, seed=9, truncation=TRUNCATIONS[3]))
    await generator.release("alone")
    turns = [turn(f"s{n}", PROMPT, seed=9, truncation=TRUNCATIONS[3]) for n in range(7)]
    assert set(await asyncio.gather(*map(generator.generate, turns))) == {alone}
    generator.close()
