"""Random agents: whatever they call, repeat, change and give up, each sampled token is trained exactly once."""

import asyncio
import os
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import TOKENIZER, TOOLS, WITH_REASONING, answer, call, logprobs_of

from engine.rollout.agents.asked import Asked, RequestRefused
from engine.rollout.agents.call_sessions import CallSessions
from engine.rollout.agents.capture import common
from engine.rollout.agents.proxy import Budget, ModelProxy, nobody
from engine.rollout.policy_session import PolicySession
from engine.rollout.renderers.chat import chat_renderer
from engine.spec.branches import branches_of, exchanges_of
from engine.spec.generation import Generated
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema
from engine.spec.trajectory import Task, Trajectory
from engine.training.batch import samples_from_trajectory
from tests.engine.rollout.renderers.model_folders import write_folder

WORDS = ("one", "two", "a b", "<|im_start|>assistant", "né", "")
ROOM = 100_000


@cache
def qwen3():
    return chat_renderer(
        write_folder(Path(mkdtemp(prefix="palestra-agents-", dir=os.environ["PALESTRA_HOME"])), "qwen3")
    )


class RandomPolicy:
    """Says something that its renderer can read, or is cut short; remembers what it was shown and what it returned."""

    def __init__(self, renderer, seed):
        self.renderer, self.random = renderer, Random(seed)
        self.seen: dict[str, list[int]] = {}
        self.returned: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.open: set[str] = set()

    async def generate(self, request):
        self.open.add(request.session)
        before = [*self.seen.get(request.session, []), *request.new_ids]
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        ids = self.renderer.write(self.message(), TOOLS)[: request.max_new_tokens]
        stopped = ids[-1] in request.stop_ids
        if self.random.random() < 0.2:
            ids, stopped = ids[: max(1, len(ids) // 2)], False
        self.seen[request.session] = [*before, *ids]
        self.returned.append((tuple(before), tuple(ids)))
        return Generated(tuple(ids), tuple(logprobs_of(before, ids)), (3,) * len(ids), "stop" if stopped else "length")

    def message(self):
        reasoning = self.random.choice(("", "hm"))
        if self.random.random() < 0.5:
            return AssistantMessage.calling("python", {"code": self.random.choice(WORDS[:3])}, reasoning=reasoning)
        return AssistantMessage(self.random.choice(WORDS[:3]), reasoning=reasoning)

    async def rewind(self, session, tokens):
        del self.seen[session][tokens:]

    async def release(self, session):
        await asyncio.sleep(0)
        self.open.discard(session)


async def shortly(number, call):
    await asyncio.sleep(0)


def proxy(policy, *, on_call=shortly, on_show=nobody, **changes):
    budget = {"calls": 1000, "sampled_tokens": 10**6, "turn_tokens": 64, "parallel": 8, "context_tokens": ROOM}

    def session():
        return PolicySession(policy, "agent", stop_ids=policy.renderer.stop_ids, max_turn_tokens=64,
                             context_tokens=ROOM, temperature=1.0)  # fmt: skip

    budgeted = Budget(**{**budget, **changes})
    return ModelProxy(policy.renderer, CallSessions(session), budgeted, seed=1, on_call=on_call, on_show=on_show)


class RandomAgent:
    """Keeps conversations, of which a later call may take any, as it was or changed."""

    def __init__(self, model, random):
        self.model, self.random = model, random
        self.conversations = [(Message("user", "start"),)]
        self.not_cut = []

    async def plays(self, steps):
        for _ in range(steps):
            calls = [asyncio.ensure_future(self.one()) for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
            if self.random.random() < 0.3:  # it hangs up
                for _ in range(self.random.randrange(6)):
                    await asyncio.sleep(0)
                self.random.choice(calls).cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def one(self):
        messages = self.random.choice(self.conversations)
        match self.random.randrange(6):
            case 0:
                messages = (Message("system", "summary"), Message("user", self.random.choice(WORDS)))
            case 1:
                messages = tuple(self.changed(entry) for entry in messages)
        stops = self.random.choice(((), (), ("n",), ("wo", "a b")))
        [taken] = await self.model.complete(Asked(messages, tuple(TOOLS), stops=stops))
        if taken.message.malformed is None and any(stop in taken.reply.content for stop in stops):
            self.not_cut.append((stops, taken))
        reply = taken.reply
        read = [Message("tool", "result", request.name, request.id) for request in reply.requests]
        if not read or self.random.random() < 0.3:
            read.append(Message("user", self.random.choice(WORDS)))
        self.conversations.append((*messages, reply, *read))

    def changed(self, entry):
        if isinstance(entry, AssistantMessage) and not entry.requests:
            return AssistantMessage(entry.content + " changed")
        return entry


def trajectory(model):
    task = Task(id="t", split="train", level=1, question="", answer="")
    played = Trajectory(id="train-0-0", purpose="train", prompt=0, member=0, sampled_at_version=3, task=task,
                        segments=model.segments(), stop_reason="done", answer=None, success=False, reward=0.0,
                        rewards={})  # fmt: skip
    return Trajectory.model_validate_json(played.model_dump_json())


def contexts(played):
    """By turn in order of time, all ids before it."""
    whole, before = [], {}
    for segment, numbers in zip(played.segments, played.turn_numbers, strict=True):
        ids = [] if segment.prefix is None else whole[segment.prefix.segment][: segment.prefix.tokens]
        for number, turn in zip(numbers, segment.turns, strict=True):
            ids = [*ids, *turn.context_ids]
            before[number] = tuple(ids)
            ids = [*ids, *turn.token_ids]
        whole.append(ids)
    return [before[number] for number in range(len(before))]


def not_captured(policy, model, played):
    """What the policy returned and no turn begins with; each turn takes one, the longest turns first."""
    left = list(policy.returned)
    captured = zip(contexts(played), played.turns, model.calls, strict=True)
    for before, turn, taken in sorted(captured, key=lambda entry: -len(entry[1].token_ids)):
        kept, length = tuple(turn.token_ids), len(turn.token_ids) + taken.dropped_tokens
        left.remove(next(it for it in left if it[0] == before and it[1][: len(kept)] == kept and len(it[1]) == length))
    return left


@pytest.mark.parametrize("renderer", [lambda: WITH_REASONING, qwen3], ids=["characters", "qwen3"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_each_sampled_token_is_trained_once_with_the_context_and_the_log_prob_that_it_had(renderer, seed):
    async def play():
        policy = RandomPolicy(renderer(), seed)
        model = proxy(policy)
        agent = RandomAgent(model, Random(seed + 1))
        playing = asyncio.ensure_future(agent.plays(6))
        if seed % 3 == 0:  # it is killed
            for _ in range(seed % 40):
                await asyncio.sleep(0)
            playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
        await model.close()
        return policy, model, agent

    policy, model, agent = asyncio.run(play())
    assert (policy.open, agent.not_cut) == (set(), [])
    if not policy.returned:
        return
    played = trajectory(model)
    assert not_captured(policy, model, played) == []
    for before, turn in zip(contexts(played), played.turns, strict=True):
        assert turn.logprobs == logprobs_of(list(before), turn.token_ids)
    samples = samples_from_trajectory(played)
    assert sum(int(sample.loss_mask.sum()) for sample in samples) == played.sampled_tokens
    assert played.sampled_tokens + model.dropped_tokens == sum(len(ids) for _, ids in policy.returned)
    check_conversations(played, policy.renderer)


def check_conversations(played, renderer):
    """Each branch, read from its passages, is the text of its tokens, and every turn stands in one."""
    before, found = contexts(played), set()
    for branch in branches_of(played):
        exchanges = exchanges_of(played, branch)
        last = played.turn_numbers[branch][-1]
        assert sum(exchange.tokens for exchange in exchanges) == len(before[last]) + len(played.turns[last].token_ids)
        assert sum(exchange.unknown_tokens for exchange in exchanges) == 0
        text = "".join(exchange.read_text + exchange.passage.sampled_text for exchange in exchanges)
        assert text == renderer.text([*before[last], *played.turns[last].token_ids])
        found |= {exchange.passage.number for exchange in exchanges if exchange.passage.is_whole}
    assert found == set(range(len(played.turns)))


def asked(*messages):
    return Asked(messages, tuple(TOOLS))


START = Message("user", "start")


async def test_a_call_that_extends_another_reads_on_from_its_ids_and_writes_nothing_twice():
    policy = RandomPolicy(WITH_REASONING, 1)
    policy.message = iter([AssistantMessage.calling("python", {"code": "1"}, reasoning="hm"),
                           AssistantMessage("it")]).__next__  # fmt: skip
    policy.random.random = lambda: 1.0
    model = proxy(policy)
    [first] = await model.complete(asked(START))
    [request] = first.reply.requests
    await model.complete(asked(START, first.reply, Message("tool", "2", "python", request.id)))
    [segment] = model.segments()
    assert [turn.token_ids for turn in segment.turns] == [call("1", "hm"), answer("it")]
    assert segment.turns[1].context_ids == [TOKENIZER.output_open, *TOKENIZER.encode("2"), TOKENIZER.output_close,
                                            TOKENIZER.assistant]  # fmt: skip
    assert segment.turns[0].tool_calls[0].output == "2"


async def test_a_retry_and_a_changed_answer_are_branches_that_share_what_stands_before_them():
    policy = RandomPolicy(WITH_REASONING, 5)
    policy.message = iter([AssistantMessage(text) for text in ("x", "y", "z")]).__next__
    policy.random.random = lambda: 1.0
    model = proxy(policy)
    [first], [again] = [await model.complete(asked(START)) for _ in range(2)]
    await model.complete(asked(START, AssistantMessage("changed"), Message("user", "go on")))
    played = trajectory(model)
    assert (first.reply.content, again.reply.content) == ("x", "y")
    opening = len(first.context.token_ids)
    assert [segment.prefix and (segment.prefix.segment, segment.prefix.tokens) for segment in played.segments] == [
        None, (0, opening - 1), (0, opening + 1),
    ]  # fmt: skip
    assert played.sampled_tokens == sum(len(ids) for _, ids in policy.returned)


async def test_messages_that_cannot_follow_one_another_are_refused_with_the_reason():
    model = proxy(RandomPolicy(WITH_REASONING, 1))
    calling = AssistantMessage.calling("python", {"code": "1"})
    for messages, reason in [
        ((AssistantMessage("I"),), "nobody speaks before"),
        ((START, AssistantMessage("I")), "nothing stands behind"),
        ((START, Message("tool", "2", "python", "call-1")), "without a call"),
        ((START, calling, Message("user", "no result")), "give each call one"),
        ((START, calling, Message("tool", "2", "python", "another")), "give each call one"),
        ((START, calling, Message("user", "x"), Message("tool", "2", "python", "call-1")), "put it first"),
    ]:
        with pytest.raises(RequestRefused, match=reason) as refusal:
            await model.complete(asked(*messages))
        assert refusal.value.kind == "conversation"
    assert model.segments() == []


def steady():
    policy = RandomPolicy(WITH_REASONING, 1)
    policy.message = lambda: AssistantMessage("abcdefgh")
    policy.random.random = lambda: 1.0
    return policy


async def test_parallel_calls_are_bounded_and_what_is_refused_frees_its_place():
    model = proxy(steady(), parallel=2, calls=3)
    outcomes = await asyncio.gather(*(model.complete(asked(START)) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [list, list, RequestRefused]
    assert (outcomes[2].kind, outcomes[2].status) == ("rate", 429)
    await model.complete(asked(START))
    with pytest.raises(RequestRefused, match="3 calls are used up") as refusal:
        await model.complete(asked(START))
    assert (refusal.value.status, len(model.calls)) == (403, 3)


async def test_tokens_are_bounded_over_all_calls_to_the_last_one():
    model = proxy(steady(), sampled_tokens=25)
    outcomes = await asyncio.gather(*(model.complete(asked(START)) for _ in range(2)), return_exceptions=True)
    assert outcomes[1].kind == "rate"  # all that is left is lent to the first
    sampled = [len((await model.complete(asked(START)))[0].generated.token_ids) for _ in range(2)]
    assert sampled == [10, 5]
    with pytest.raises(RequestRefused, match="25 sampled tokens are used up"):
        await model.complete(asked(START))
    assert model.sampled_tokens == 25


class Gate:
    """An ``on_call`` that waits until it is opened."""

    def __init__(self):
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self, number, call):
        self.reached.set()
        await self.opened.wait()


async def test_a_call_that_is_sampled_counts_once_though_its_agent_has_no_answer_yet():
    gate = Gate()
    model = proxy(steady(), calls=2, sampled_tokens=15, parallel=3, on_call=gate)
    first = asyncio.ensure_future(model.complete(asked(START)))
    await gate.reached.wait()
    second = asyncio.ensure_future(model.complete(asked(START)))
    for _ in range(20):
        await asyncio.sleep(0)
    with pytest.raises(RequestRefused, match="2 calls are used up"):
        await model.complete(asked(START))
    gate.opened.set()
    sampled = [len(call.generated.token_ids) for [call] in await asyncio.gather(first, second)]
    assert sampled == [10, 5]


async def test_a_choice_that_is_sampled_counts_once_while_others_go_on():
    policy, gate = steady(), Gate()
    sampling, left = policy.generate, [False, False, True]

    async def generate(request):
        if left and left.pop():
            await gate(0, None)
        return await sampling(request)

    policy.generate = generate
    model = proxy(policy, calls=4)
    three = asyncio.ensure_future(model.complete(Asked((START,), tuple(TOOLS), choices=3)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(model.calls) == 2
    await model.complete(asked(START))
    gate.opened.set()
    assert (len(await three), len(model.calls)) == (3, 4)


async def test_calls_at_once_are_bounded_until_they_are_answered():
    gate = Gate()
    model = proxy(steady(), parallel=1, on_call=gate)
    first = asyncio.ensure_future(model.complete(asked(START)))
    await gate.reached.wait()
    with pytest.raises(RequestRefused) as refusal:
        await model.complete(asked(START))
    assert refusal.value.kind == "rate"
    gate.opened.set()
    await first


REQUESTS = st.tuples(st.integers(0, 12), st.integers(1, 3), st.sampled_from([None, 1, 7]), st.sampled_from([None, 4]))
"""When a request comes, its choices, the tokens that it asks for, and after how long its agent hangs up."""


@settings(max_examples=150, deadline=None)
@given(st.lists(REQUESTS, min_size=1, max_size=8), st.integers(1, 8), st.integers(1, 40), st.integers(0, 2**32))
def test_a_budget_is_never_exceeded_and_nobody_is_refused_for_it_before_it_is_used_up(requests, calls, tokens, seed):
    waits = Random(seed)

    async def slow(number, call):
        for _ in range(waits.randrange(6)):
            await asyncio.sleep(0)

    async def refused(model, when, choices, most_tokens, hangs_up):
        """Why it is refused, if it is, and how many turns it gives up."""
        for _ in range(when):
            await asyncio.sleep(0)
        calling = asyncio.ensure_future(
            model.complete(Asked((START,), tuple(TOOLS), choices=choices, most_tokens=most_tokens))
        )
        for _ in range(hangs_up or 0):
            await asyncio.sleep(0)
        if hangs_up:
            calling.cancel()
        await asyncio.wait([calling])
        if calling.cancelled():
            return None, choices
        return calling.exception(), 0

    async def play():
        policy = RandomPolicy(WITH_REASONING, seed)
        model = proxy(policy, calls=calls, sampled_tokens=tokens, parallel=4, on_call=slow)
        ends = await asyncio.gather(*(refused(model, *request) for request in requests))
        await model.close()
        return model, ends

    model, ends = asyncio.run(play())
    assert len(model.calls) <= calls
    assert model.sampled_tokens <= tokens
    given_up = sum(turns for _, turns in ends)
    for (_, choices, *_), (error, _) in zip(requests, ends, strict=True):
        assert error is None or error.kind in ("budget", "rate")
        if error is not None and error.kind == "budget":
            short_of_calls = len(model.calls) + given_up + choices > calls
            assert short_of_calls or tokens - model.sampled_tokens < choices


async def test_messages_that_leave_no_room_are_refused_as_too_long():
    model = proxy(steady(), context_tokens=20)
    with pytest.raises(RequestRefused, match="context has 20") as refusal:
        await model.complete(asked(Message("user", "x" * 40)))
    assert refusal.value.kind == "context"


LONG = "x" * 2000
LONG_WHATEVER_THE_CONTEXT = "x" * 2**20 + "x"
CALLS = AssistantMessage(requests=(ToolRequest("python", {"code": LONG}, "1"),))


@pytest.mark.parametrize("request_of_it", [
    Asked((Message("user", LONG),)),
    Asked((START, AssistantMessage(LONG), START)),
    Asked((START, AssistantMessage("it", reasoning=LONG_WHATEVER_THE_CONTEXT), START)),
    Asked((START, *[AssistantMessage("it", reasoning=LONG_WHATEVER_THE_CONTEXT[::2])] * 2, START)),
    Asked((START, CALLS, Message("tool", "2", "python", "1"))),
    Asked((START,), (ToolSchema("python", LONG_WHATEVER_THE_CONTEXT),)),
    Asked((START,), (ToolSchema("python", parameters={"description": LONG_WHATEVER_THE_CONTEXT}),)),
])  # fmt: skip
async def test_what_is_far_too_long_is_refused_before_it_is_made_into_ids(request_of_it):
    policy = steady()
    model = proxy(policy, context_tokens=30)
    policy.renderer = model.renderer = None
    with pytest.raises(RequestRefused, match=r"(messages|tools|thought) (is|are) \d+ characters") as refusal:
        await model.complete(request_of_it)
    assert refusal.value.kind == "context"


THINKING = [AssistantMessage("it", reasoning="so " * 3000), Message("user", "on")]


@pytest.mark.parametrize(("renderer", "request_of_it"), [
    (lambda: WITH_REASONING, Asked((START,), (ToolSchema("python", LONG * 20),))),
    (qwen3, Asked((START, *THINKING * 5), tuple(TOOLS))),
])  # fmt: skip
async def test_what_the_template_leaves_out_takes_no_room(renderer, request_of_it):
    """Tools that it is never told; thoughts that end when a user speaks again."""
    policy = steady()
    policy.renderer = renderer()
    [call] = await proxy(policy, context_tokens=600).complete(request_of_it)
    assert len(call.context.token_ids) < 600


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_beginning_is_found_by_halving(left, right):
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1
    assert common(left, right) == expected
