"""The generator is compared with the training model, which knows no cache, and with itself in other company."""

import asyncio
import random
import threading

import pytest
import torch

from engine.inference.interface import GenerationAborted, NonFiniteLogits
from engine.inference.torch.factory import builtin_generator
from engine.inference.torch.generator import PREFILL_FROM, TorchGenerator
from engine.models.qwen3 import Qwen3
from engine.spec.generation import Truncation
from engine.spec.model import BuiltinModel
from tests.engine.inference.torch.cast import SPEC, VOCABULARY, crowd_member, turn, until, weights


async def two_turns(generator: TorchGenerator, session: str):
    """A prompt long enough for prefill, a sampled turn, a short observation and a second turn."""
    first = await generator.generate(turn(session, range(20, 81), seed=1))
    second = await generator.generate(turn(session, range(30, 49), seed=2, max_new_tokens=10))
    await generator.release(session)
    return first, second


async def test_company_slot_and_order_change_no_bit(generator):
    alone = await two_turns(generator, "alone")
    dice = random.Random(4)
    for round_number in range(3):
        crowd = [crowd_member(generator, f"{round_number}-{i}", dice) for i in range(63 + 20 * round_number)]
        position = dice.randrange(len(crowd))
        entrants = [*crowd[:position], two_turns(generator, "observed"), *crowd[position:]]
        answers = await asyncio.gather(*entrants)
        assert answers[position] == alone
    assert await two_turns(generator, "alone again") == alone


async def test_company_changes_no_bit_of_a_later_turn_that_is_read_in_chunks(generator):
    async def long_observation(session: str):
        first = await generator.generate(turn(session, range(20, 50), seed=1))
        second = await generator.generate(turn(session, range(20, 20 + PREFILL_FROM + 5), seed=2))
        await generator.release(session)
        return first, second

    alone = await long_observation("alone")
    dice = random.Random(4)
    crowd = [crowd_member(generator, f"{i}", dice) for i in range(90)]
    together = await asyncio.gather(*crowd[:20], *(long_observation(f"s{i}") for i in range(12)), *crowd[20:])
    assert together[20:32] == [alone] * 12


async def test_equal_requests_in_all_slots_get_equal_bits(generator):
    answers = await asyncio.gather(*(two_turns(generator, f"s{i}") for i in range(64)))
    assert len(set(answers)) == 1


async def test_logprobs_are_those_of_the_training_model(generator):
    first, second = await two_turns(generator, "s")
    ids = [*range(20, 81), *first.token_ids, *range(30, 49), *second.token_ids]
    model = Qwen3(SPEC, VOCABULARY)
    model.load_state_dict(weights())
    with torch.no_grad():
        logp_TV = model(torch.tensor([ids])).log_softmax(-1)[0]
    sampled_at = [*range(61, 73), *range(92, 102)]
    expected = [logp_TV[t - 1, ids[t]].item() for t in sampled_at]
    assert [*first.logprobs, *second.logprobs] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("heat", [0.4, 2.0])
async def test_logprobs_are_taken_at_a_temperature_of_their_own(generator, heat):
    """Forced tokens have the same ones, and what is sampled does not depend on it."""
    prompt = [*range(20, 81)]
    plain = await generator.generate(turn("plain", prompt, temperature=0.4))
    heated = await generator.generate(turn("heated", prompt, temperature=0.4, logprob_temperature=heat))
    forced = await generator.generate(turn("forced", prompt, logprob_temperature=heat, forced_ids=heated.token_ids))
    assert heated.token_ids == plain.token_ids
    model = Qwen3(SPEC, VOCABULARY)
    model.load_state_dict(weights())
    with torch.no_grad():
        logits_TV = model(torch.tensor([[*prompt, *heated.token_ids]]))[0]
    for answer, at in ((plain, 1.0), (heated, heat), (forced, heat)):
        logp_TV = (logits_TV / at).log_softmax(-1)
        expected = [logp_TV[len(prompt) - 1 + n, token].item() for n, token in enumerate(answer.token_ids)]
        assert answer.logprobs == pytest.approx(expected, abs=5e-4)


async def test_greedy_takes_the_likeliest_token_each_time(generator):
    prompt = list(range(20, 50))
    answer = await generator.generate(turn("s", prompt, temperature=0.0))
    model = Qwen3(SPEC, VOCABULARY)
    model.load_state_dict(weights())
    with torch.no_grad():
        for token in answer.token_ids:
            assert token == model(torch.tensor([prompt]))[0, -1].argmax()
            prompt.append(token)


async def test_the_seed_decides_the_draws(generator):
    answers = [await generator.generate(turn(f"s{i}", range(20, 30), seed=seed)) for i, seed in enumerate([1, 1, 2])]
    assert answers[0] == answers[1] != answers[2]


async def test_a_turn_ends_at_its_stop_token_which_it_includes(generator):
    free = await generator.generate(turn("free", range(20, 30)))
    stop = free.token_ids[4]
    stopped = await generator.generate(turn("stopped", range(20, 30), stop_ids=[stop]))
    end = free.token_ids.index(stop) + 1
    assert (stopped.token_ids, stopped.stopped_by) == (free.token_ids[:end], "stop")
    assert free.stopped_by == "length"


async def test_a_full_context_ends_the_turn(generator):
    answer = await generator.generate(turn("s", [20] * 122, max_new_tokens=50))
    assert (len(answer.token_ids), answer.stopped_by) == (6, "context")


@pytest.mark.parametrize("length", [128, 200])
async def test_ids_that_leave_no_room_get_an_empty_answer_and_change_nothing(generator, length):
    expected = await two_turns(generator, "undisturbed")
    first = await generator.generate(turn("s", range(20, 81), seed=1))
    refused = await generator.generate(turn("s", [20] * (length - 73)))
    assert (refused.token_ids, refused.stopped_by) == ((), "context")
    second = await generator.generate(turn("s", range(30, 49), seed=2, max_new_tokens=10))
    assert (first, second) == expected


async def test_sessions_beyond_the_slots_wait_in_order_of_arrival():
    generator = builtin_generator(SPEC, slots=2, threads=1)
    finished: list[str] = []

    async def episode(name: str) -> None:
        await generator.generate(turn(name, [20, 21], max_new_tokens=5))
        finished.append(name)
        await generator.release(name)

    names = [f"s{i}" for i in range(9)]
    await asyncio.gather(*map(episode, names))
    generator.close()
    assert sorted(finished[:2]) == names[:2]
    assert finished.index("s8") >= 7
    assert [name for name in finished if name not in names[:2]] == sorted(finished[2:])


async def test_a_session_keeps_its_slot_between_turns_though_others_wait():
    generator = builtin_generator(SPEC, slots=1, threads=1)
    first = await generator.generate(turn("holder", [20, 21]))
    waiter = asyncio.create_task(generator.generate(turn("waiter", [20, 21])))
    await generator.generate(turn("holder", [22, 23]))
    assert generator.stats()["waiting"] == 1
    assert not waiter.done()
    await generator.release("holder")
    assert await waiter == first
    generator.close()


async def test_new_weights_take_over_between_tokens_and_each_token_knows_its_version(generator):
    running = asyncio.create_task(generator.generate(turn("s", range(20, 30), max_new_tokens=80)))
    await until(lambda: generator.stats()["sampled_tokens"] >= 5)
    await generator.load_weights(weights(seed=6), version=2)
    answer = await running
    versions = answer.policy_versions
    assert set(versions) == {1, 2}
    assert list(versions) == sorted(versions)
    old_only = await generator.generate(turn("new", range(20, 30), max_new_tokens=80))
    assert set(old_only.policy_versions) == {2}
    changed_at = versions.index(2)
    assert answer.token_ids[:changed_at] != old_only.token_ids[:changed_at]


async def test_reloading_equal_weights_in_the_middle_changes_no_bit(generator):
    undisturbed = await generator.generate(turn("undisturbed", range(20, 30), max_new_tokens=60))
    for attempt in range(50):  # on a busy machine the turn may be over before the weights are there
        running = asyncio.create_task(generator.generate(turn(f"s{attempt}", range(20, 30), max_new_tokens=60)))
        before = generator.stats()["sampled_tokens"]
        await until(lambda before=before: generator.stats()["sampled_tokens"] > before + 3)
        await generator.load_weights(weights(), version=1)
        came_in_the_middle = not running.done()
        assert await running == undisturbed
        if came_in_the_middle:
            return
    pytest.fail("no turn was still running when its weights had been loaded")


async def test_abort_all_ends_running_and_waiting_turns_with_a_named_error():
    generator = builtin_generator(SPEC, slots=2, threads=1)
    turns = [asyncio.create_task(generator.generate(turn(f"s{i}", [20], max_new_tokens=90))) for i in range(4)]
    await until(lambda: generator.stats()["waiting"] == 2)
    await generator.abort_all()
    outcomes = await asyncio.gather(*turns, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [GenerationAborted] * 4
    assert generator.stats()["sessions"] == generator.stats()["waiting"] == 0
    assert (await generator.generate(turn("after", [20]))).stopped_by == "length"
    generator.close()


async def test_a_cancelled_caller_frees_its_slot():
    generator = builtin_generator(SPEC, slots=1, threads=1)
    running = asyncio.create_task(generator.generate(turn("s", [20], max_new_tokens=90)))
    await until(lambda: generator.stats()["sampled_tokens"] > 0)
    running.cancel()
    assert len((await generator.generate(turn("next", [20]))).token_ids) == 12
    generator.close()


async def test_releasing_an_unknown_session_is_fine_and_a_released_one_begins_anew(generator):
    await generator.release("nobody")
    first = await generator.generate(turn("s", [20, 21]))
    await generator.release("s")
    assert await generator.generate(turn("s", [20, 21])) == first


@pytest.mark.parametrize(
    "bad",
    [
        {"new_ids": []},
        {"new_ids": [VOCABULARY]},
        {"new_ids": [-1]},
        {"new_ids": [20], "max_new_tokens": 0},
        {"new_ids": [20], "temperature": -1.0},
        {"new_ids": [20], "temperature": float("nan")},
        {"new_ids": [20], "logprob_temperature": 0.0},
        {"new_ids": [20], "seed": -1},
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(generator, bad):
    with pytest.raises(ValueError):
        await generator.generate(turn("s", **bad))
    assert generator.stats()["sessions"] == 0


async def test_two_turns_at_once_in_one_session_are_refused(generator):
    running = asyncio.create_task(generator.generate(turn("s", [20], max_new_tokens=60)))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="already has a turn"):
        await generator.generate(turn("s", [21]))
    assert len((await running).token_ids) == 60


@pytest.mark.parametrize("how", [{}, {"temperature": 0.0}, {"truncation": Truncation(top_k=3, top_p=0.9)}])
async def test_weights_that_give_no_distribution_end_the_turn_with_an_error_and_nobody_elses(generator, how):
    broken = weights()
    broken["model.norm.weight"] = broken["model.norm.weight"] * float("nan")
    await generator.load_weights(broken, version=2)
    with pytest.raises(NonFiniteLogits, match="version 2"):
        await generator.generate(turn("s", range(20, 40), **how))
    await generator.load_weights(weights(), version=3)
    assert len((await generator.generate(turn("s", range(20, 40)))).token_ids) == 12


async def test_an_error_in_a_pass_reaches_the_callers(monkeypatch):
    generator = builtin_generator(SPEC, slots=1, threads=1)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    monkeypatch.setattr(generator._decoder, "step", lambda *_: 1 / 0)
    with pytest.raises(GenerationAborted):
        await generator.generate(turn("s", [20]))
    with pytest.raises(RuntimeError, match="has failed"):
        await generator.generate(turn("s", [20]))
    generator.close()


async def test_whoever_comes_while_a_pass_fails_learns_it_and_a_caller_may_still_be_cancelled(monkeypatch):
    generator = builtin_generator(SPEC, slots=4, threads=1)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    entered, goes_on = threading.Event(), threading.Event()

    def out_of_memory(*_):
        entered.set()
        assert goes_on.wait(60)
        raise MemoryError

    monkeypatch.setattr(generator._decoder, "step", out_of_memory)
    running = [asyncio.create_task(generator.generate(turn("running", [20])))]
    await asyncio.to_thread(entered.wait, 60)
    calls = [generator.generate(turn("late", [20])), generator.generate(turn("gone", [20])), generator.suspend()]
    late, gone, suspending = (asyncio.create_task(call) for call in calls)
    await until(lambda: len(generator._inbox) == 3)
    goes_on.set()
    generator._thread.join()
    gone.cancel()
    ended = await asyncio.wait_for(asyncio.gather(*running, late, suspending, gone, return_exceptions=True), 20)
    assert [type(error) for error in ended] == [
        GenerationAborted, RuntimeError, RuntimeError, asyncio.CancelledError,
    ]  # fmt: skip
    assert all(isinstance(error.__cause__, MemoryError) for error in ended[1:3])
    await generator.release("running")
    generator.close()


async def test_after_close_pending_and_new_turns_are_aborted():
    generator = builtin_generator(SPEC, slots=1, threads=1)
    running = asyncio.create_task(generator.generate(turn("s", [20], max_new_tokens=90)))
    await asyncio.sleep(0.01)
    generator.close()
    with pytest.raises(GenerationAborted):
        await running
    with pytest.raises(GenerationAborted):
        await generator.generate(turn("t", [20]))


async def test_an_idle_generator_uses_no_cpu(generator):
    await generator.generate(turn("s", [20]))
    clock = generator._thread.native_id
    before = _thread_ticks(clock)
    await asyncio.sleep(0.3)
    assert _thread_ticks(clock) - before <= 1


def _thread_ticks(thread_id: int) -> int:
    with open(f"/proc/self/task/{thread_id}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


async def test_a_policy_large_enough_for_shared_passes_is_invariant_too():
    spec = BuiltinModel(
        layers=1, hidden_size=768, heads=8, kv_heads=2, head_dim=64, intermediate_size=1024, context_tokens=128
    )
    generator = builtin_generator(spec, slots=16, threads=2)
    alone = await two_turns(generator, "alone")
    dice = random.Random(4)
    answers = await asyncio.gather(
        *(crowd_member(generator, f"{i}", dice) for i in range(20)), two_turns(generator, "observed")
    )
    assert answers[-1] == alone
    generator.close()
