"""A turn begins to be sampled behind the context that is expected; where it is another one, nothing comes of it."""

import asyncio
from dataclasses import replace

import pytest
from scripted import TOOLS, WITH_REASONING

from engine.rollout.agents import live
from engine.rollout.agents.asked import Asked, RequestRefused
from engine.rollout.agents.contexts import Contexts, Spoken
from engine.rollout.renderers.contract import Rewritten
from engine.spec.message import AssistantMessage, Message
from tests.engine.rollout.agents.endpoints import endpoint, request, scripted
from tests.engine.rollout.agents.test_capture import proxy, qwen3

START = Message("user", "start")
CALL = AssistantMessage.calling("python", {"code": "1"})
CHAT = "/v1/chat/completions"


class Surprising:
    """A renderer that says that it only appends.  It forgets all but the last exchange once there are ``most``; or
    ``refuses`` then."""

    def __init__(self, renderer, most=2, *, refuses=False):
        self.renderer, self.most, self.refuses, self.asked = renderer, most, refuses, 0

    append_only = True

    def __getattr__(self, name):
        return getattr(self.renderer, name)

    def rewritten(self, conversation, turns=1):
        self.asked += 1
        if len(conversation.exchanges) < self.most:
            return self.renderer.rewritten(conversation, turns)
        if self.refuses:
            raise ValueError("too many turns")
        last = conversation.exchanges[-1]
        ids = self.renderer.prompt([START], conversation.tools)
        return Rewritten((*ids, *self.renderer.bridge(last.messages)), len(ids))


def answered(messages, reply, *words):
    """What an agent asks next."""
    results = (Message("tool", "2", request.name, request.id) for request in reply.requests)
    return (*messages, reply, *results, *(Message("user", word) for word in words))


async def expectations(renderer, *steps):
    """Whether the context of each step, a turn and what a user says to it, was expected to be appended to."""
    contexts, messages, expected = Contexts(renderer), (START,), []
    for turn, *words in steps:
        found = await contexts.find(Asked(messages, tuple(TOOLS)), 10**5)
        found = contexts.confirmed(found)
        token_ids = tuple(renderer.write(turn, TOOLS))
        parsed = renderer.parse(token_ids, TOOLS)
        contexts.spoke(len(expected), found.digest, parsed.message, Spoken(found.context, token_ids, parsed))
        messages = answered(messages, parsed.message, *words)
        expected.append((await contexts.find(Asked(messages, tuple(TOOLS)), 10**5)).expected)
    return expected


THOUGHTFUL, PLAIN = AssistantMessage("yes", reasoning="hm"), AssistantMessage("yes")


async def test_tools_are_expected_to_be_appended_and_words_once_they_were():
    assert await expectations(qwen3(), (CALL,), (CALL,)) == [True, True]
    assert await expectations(qwen3(), (PLAIN, "a"), (PLAIN, "b"), (CALL,), (CALL, "c")) == [False, True, True, True]


async def test_words_behind_a_thought_are_not():
    assert await expectations(qwen3(), (PLAIN, "a"), (THOUGHTFUL, "b"), (PLAIN, "c")) == [False, False, False]
    thinks = replace(CALL, reasoning="hm")
    assert await expectations(qwen3(), (PLAIN, "a"), (thinks,), (PLAIN, "c")) == [False, True, False]


async def test_where_it_was_otherwise_once_nothing_is_expected_any_more():
    steps = [(CALL,)] * 4
    assert await expectations(Surprising(qwen3()), *steps) == [True, True, False, False]


class Unprobed(Surprising):
    """It cannot write what would say whether it only appends."""

    @property
    def append_only(self):
        raise ValueError("the template refuses")


async def test_a_template_that_cannot_be_asked_whether_it_appends_answers_all_the_same():
    assert await expectations(Unprobed(qwen3(), most=100), (CALL,), (CALL,), (PLAIN, "a"), (PLAIN, "b")) == [False] * 4


def surprised(renderer, **changes):
    """A policy that calls a tool whenever it is asked."""
    policy = scripted(renderer, CALL)
    return policy, proxy(policy, **changes)


async def talked(model, calls):
    messages, taken = (START,), []
    for _ in range(calls):
        taken += await model.complete(Asked(messages, tuple(TOOLS)))
        messages = answered(messages, taken[-1].reply)
    return taken


async def test_sampling_begins_before_the_conversation_is_written_whole():
    renderer = Surprising(qwen3(), most=100)
    policy, model = surprised(renderer)
    written, generate = [], policy.generate

    async def generated(request):
        written.append(renderer.asked)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        written.append(renderer.asked)
        return await generate(request)

    policy.generate = generated
    await talked(model, 3)
    await model.close()
    assert written == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("waits", [0, 1, 7], ids="waits-{}".format)
@pytest.mark.parametrize("refuses", [False, True], ids=["rewrites", "refuses"])
async def test_a_turn_whose_context_was_another_one_is_sampled_anew_and_leaves_nothing(waits, refuses):
    policy, model = surprised(Surprising(qwen3(), refuses=refuses))
    generate = policy.generate

    async def generated(request):
        answer = await generate(request)
        for _ in range(waits):
            await asyncio.sleep(0)
        return answer

    policy.generate = generated
    policy.random.randrange = lambda most: 0
    if refuses:
        with pytest.raises(RequestRefused, match="too many turns"):
            await talked(model, 4)
        assert len(model.calls) == 2
    else:
        taken = await talked(model, 4)
        assert model.calls == taken
        shortened = [*qwen3().prompt([START], TOOLS), *qwen3().bridge([Message("tool", "2", "python")])]
        assert [list(call.context.token_ids) for call in taken[2:]] == [shortened] * 2
        assert [len(call.results) for call in taken] == [1, 1, 1, 0]
        assert sum(turn.observed_text is not None for segment in model.segments() for turn in segment.turns)
    assert (model.unfinished, model.failure) == (0, None)
    await model.close()
    assert policy.open == set()


async def test_a_conversation_that_the_template_refuses_is_sampled_once_at_most_and_takes_no_draws():
    policy, model = surprised(Surprising(qwen3(), refuses=True))
    asked, generate = [], policy.generate

    async def generated(request):
        asked.append(request.seed)
        return await generate(request)

    policy.generate = generated
    with pytest.raises(RequestRefused, match="too many turns"):
        await talked(model, 4)
    first, second = model.calls
    messages = answered(answered((START,), first.reply), second.reply)
    for _ in range(3):
        with pytest.raises(RequestRefused, match="too many turns"):
            await model.complete(Asked(messages, tuple(TOOLS), choices=3))
    assert len(asked) == 3
    await model.complete(Asked((START,), tuple(TOOLS)))
    assert asked[3] == asked[2]
    await model.close()


async def test_what_is_refused_for_want_of_room_takes_no_draws():
    policy, model = surprised(qwen3(), context_tokens=600)
    seeds, generate = [], policy.generate

    async def generated(request):
        seeds.append(request.seed)
        return await generate(request)

    policy.generate = generated
    await talked(model, 1)
    with pytest.raises(RequestRefused, match="send less"):
        await model.complete(Asked((Message("user", "xyz " * 400),), tuple(TOOLS)))
    await talked(model, 1)
    await model.close()
    policy, model = surprised(qwen3(), context_tokens=600)
    refused, seeds[:] = [*seeds], []
    generate, policy.generate = policy.generate, generated
    await talked(model, 1)
    await talked(model, 1)
    await model.close()
    assert seeds == refused


async def test_nor_does_what_has_no_room_only_behind_the_right_context():
    renderer = Surprising(qwen3())
    policy, model = surprised(renderer, context_tokens=2000)
    renderer.rewritten = lambda conversation, turns=1: Rewritten((1,) * 2000, 0)
    with pytest.raises(RequestRefused, match="send less"):
        await talked(model, 2)
    assert model._begun == len(model.calls) == 1
    await model.close()
    assert policy.open == set()


async def test_the_budget_that_a_turn_gives_back_it_gives_back_when_its_context_is_certain():
    _, model = surprised(qwen3())
    first, second = await talked(model, 2)
    sampled = len(first.generated.token_ids) + len(second.generated.token_ids)
    await model.close()
    policy, model = surprised(
        Surprising(qwen3()), context_tokens=len(second.context.token_ids) + len(second.generated.token_ids) + 40,
        sampled_tokens=sampled + 60, turn_tokens=60,
    )  # fmt: skip
    taken = await talked(model, 2)
    third = answered(answered((START,), taken[0].reply), taken[1].reply)
    outcomes = await asyncio.gather(
        *(model.complete(Asked(messages, tuple(TOOLS))) for messages in (third, (START,))), return_exceptions=True
    )
    await model.close()
    assert [type(outcome) for outcome in outcomes] == [list, RequestRefused]
    assert model.sampled_tokens <= sampled + 60


async def test_what_has_no_room_behind_a_context_is_free_for_other_calls():
    prompt = len(qwen3().prompt([START], TOOLS))
    policy, model = surprised(qwen3(), context_tokens=prompt + 10, sampled_tokens=60, turn_tokens=50)
    policy.random.randrange = lambda most: 9
    under_way = []
    for _ in range(3):
        under_way.append(asyncio.ensure_future(model.complete(Asked((START,), tuple(TOOLS)))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [len(taken) for taken in await asyncio.gather(*under_way)] == [1] * 3
    await model.close()


async def test_what_the_comparison_raises_is_what_the_caller_is_told_even_if_it_would_not_raise_it_again():
    renderer = Surprising(qwen3(), refuses=True)
    _, model = surprised(renderer)
    rewritten = renderer.rewritten

    def once(conversation, turns=1):
        renderer.most += 1
        return rewritten(conversation, turns)

    renderer.most, renderer.rewritten = 0, once
    with pytest.raises(RequestRefused, match="too many turns"):
        await talked(model, 2)
    assert [call.results for call in model.calls] == [{}]
    await model.close()


async def test_of_choices_the_others_of_one_that_fails_are_unfinished():
    policy = scripted(qwen3(), CALL)

    async def gone(number, call):
        raise ConnectionResetError("the log is gone")

    async def first_alone(request):
        asked.append(request)
        return await (generate(request) if len(asked) == 1 else asyncio.Event().wait())

    asked, model, generate = [], proxy(policy, on_call=gone), policy.generate
    policy.generate = first_alone
    with pytest.raises(ConnectionResetError):
        await model.complete(Asked((START,), tuple(TOOLS), choices=3))
    assert (len(model.calls), model.unfinished) == (1, 2)
    await model.close()


async def test_of_two_choices_too():
    policy, model = surprised(Surprising(qwen3(), most=1))
    [first] = await model.complete(Asked((START,), tuple(TOOLS)))
    both = await model.complete(Asked(answered((START,), first.reply), tuple(TOOLS), choices=2))
    await model.close()
    assert model.calls == [first, *both]
    assert len({call.context.token_ids for call in both}) == 1
    assert both[0].context.observed == len(qwen3().prompt([START], TOOLS))
    assert (model.unfinished, policy.open) == (0, set())


async def test_where_the_expected_context_leaves_no_room_the_right_one_decides():
    _, model = surprised(qwen3())
    _, second = await talked(model, 2)
    await model.close()
    room = len(second.context.token_ids) + len(second.generated.token_ids)
    _, model = surprised(qwen3(), context_tokens=room)
    with pytest.raises(RequestRefused, match="send less"):
        await talked(model, 3)
    await model.close()
    _, model = surprised(Surprising(qwen3()), context_tokens=room)
    assert len(await talked(model, 3)) == 3
    await model.close()


async def test_where_the_expected_context_leaves_little_room_the_turn_behind_the_right_one_is_whole():
    _, model = surprised(qwen3())
    *_, third = await talked(model, 3)
    await model.close()
    _, model = surprised(Surprising(qwen3()), context_tokens=len(third.context.token_ids) + 1)
    *_, whole = await talked(model, 3)
    await model.close()
    assert whole.generated.token_ids == third.generated.token_ids


@pytest.mark.parametrize("refuses", [False, True], ids=["rewrites", "refuses"])
async def test_a_stream_shows_nothing_of_a_turn_that_is_given_up(refuses, monkeypatch):
    monkeypatch.setattr(live, "SHOWN_EVERY_S", 0.0)
    turns = [AssistantMessage(text) for text in ("one", "two", "given up", "three")]
    policy = scripted(Surprising(WITH_REASONING, most=2, refuses=refuses), *turns)
    policy.random.randrange = lambda most: 0
    tokens = []

    async def stream(request, on_token):
        generated = await policy.generate(request)
        for token, logprob in zip(generated.token_ids, generated.logprobs, strict=True):
            on_token(token, logprob)
            tokens.append(token)
        for _ in range(5):
            await asyncio.sleep(0)
        return generated

    policy.stream = stream
    async with endpoint(policy) as open_to:
        messages = [{"role": "user", "content": "start"}]
        for word in ("once", "twice"):  # the first word shows that words are appended
            _, answer = await open_to.post(CHAT, {"messages": messages})
            messages += [answer["choices"][0]["message"], {"role": "user", "content": word}]
        status, events = await open_to.sent(request(CHAT, {"messages": messages, "stream": True}))
        if refuses:
            assert (status, events["error"]["code"]) == (400, "template")
        else:
            deltas = [event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]]
            assert (status, "".join(deltas)) == (200, "three")
        assert policy.renderer.text(tokens).count("given up") == 1
        assert open_to.model.unfinished == 0
