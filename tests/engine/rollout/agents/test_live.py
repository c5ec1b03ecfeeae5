"""Streams while a turn is being sampled: what was shown stands, whatever the turn turns out to be."""

import asyncio
import json
import os
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import TOKENIZER, TOOLS, WITH_REASONING, answer, call, logprobs_of

from engine.rollout.agents import live
from engine.rollout.agents.asked import Asked
from engine.rollout.agents.connection import Patience
from engine.rollout.agents.live import Live, LiveTurn, before_stops, read_at_once
from engine.rollout.renderers.chat import chat_renderer
from engine.spec.generation import Generated
from engine.spec.message import AssistantMessage, Message
from engine.training.batch import samples_from_trajectory
from tests.engine.rollout.agents.endpoints import endpoint, request, scripted
from tests.engine.rollout.agents.test_capture import RandomAgent, RandomPolicy, proxy, qwen3, trajectory
from tests.engine.rollout.renderers.model_folders import write_folder

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "hello"}]
OF_PATH = {
    CHAT: {"messages": HELLO, "stream": True},
    MESSAGES: {"messages": HELLO, "max_tokens": 64, "stream": True},
    RESPONSES: {"input": "hello", "stream": True},
}
FRAGMENTS = (
    "one", " two", "\n", "{", '{"name": "python", "parameters": {"code": "1"}}', "```", "```python\n", "\n```\n", "`",
    "<tool_call>", "</tool_call>", '\n{"name": "python", "arguments": {"code": "1"}}\n', "<", "<think>", "</think>",
    "<tool", "né", "\U0001f600", "<|python_tag|>", "  ",
)  # fmt: skip


@cache
def folder(name):
    return write_folder(Path(mkdtemp(prefix="palestra-live-", dir=os.environ["PALESTRA_HOME"])), name)


@cache
def renderers():
    return {
        "characters": WITH_REASONING,
        "hermes": qwen3(),
        "llama": chat_renderer(folder("llama3_1")),
        "code-fence": chat_renderer(folder("llama3"), tool_calls="code-fence"),
    }


@pytest.fixture(autouse=True)
def every_token(monkeypatch):
    monkeypatch.setattr(live, "SHOWN_EVERY_S", 0.0)
    monkeypatch.setattr(live, "GROWTH", 10**9)


def text_of_choice(news, choice=0):
    return "".join(more.content for number, more in news if number == choice)


class Streamed(RandomPolicy):
    """Samples one token after the other; ``gate``, where it is set, holds each turn before its last token."""

    gate: asyncio.Event | None = None

    async def stream(self, request, on_token):
        generated = await self.generate(request)
        for place, (token, logprob) in enumerate(zip(generated.token_ids, generated.logprobs, strict=True)):
            if self.gate is not None and place == len(generated.token_ids) - 1:
                await self.gate.wait()
            await asyncio.sleep(0)
            on_token(token, logprob)
        return generated


class Spelled(Streamed):
    """Says these ids, whatever they are."""

    def __init__(self, renderer, *turns):
        super().__init__(renderer, 1)
        self.turns = [list(ids) for ids in turns]

    async def generate(self, request):
        ids = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        before = [*self.seen.get(request.session, []), *request.new_ids]
        self.seen[request.session] = [*before, *ids]
        self.returned.append((tuple(before), tuple(ids)))
        stopped = "stop" if ids[-1] in request.stop_ids else "length"
        return Generated(tuple(ids), tuple(logprobs_of(before, ids)), (3,) * len(ids), stopped)


def meaning(renderer, *messages):
    policy = Streamed(renderer, 1)
    left = list(messages)
    policy.message = lambda: left.pop(0) if len(left) > 1 else left[0]
    policy.random.random = lambda: 1.0
    return policy


# ---- what is settled ----


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(renderers())), st.lists(st.sampled_from(FRAGMENTS), max_size=8), st.booleans())
def test_whatever_follows_a_message_begins_with_what_was_settled_unless_it_cannot_be_read(name, fragments, tools):
    renderer, schemas = renderers()[name], TOOLS if tools else ()
    if name == "characters":
        ids = [token for part in fragments for token in spelled_in_characters(part)]
    else:
        ids = renderer.tokenizer.encode(marked(renderer, "".join(fragments)))
    for ended in range(len(ids) + 1):
        message = renderer.parse([*ids[:ended], renderer.end_id], schemas).message
        if message.malformed is not None or any(request.malformed is not None for request in message.requests):
            continue
        for place in range(ended + 1):
            settled = renderer.settled(ids[:place], schemas)
            assert message.content.startswith(settled.content), (place, settled)
            assert message.reasoning.startswith(settled.reasoning), (place, settled)


def spelled_in_characters(part):
    match part:
        case "<tool_call>":
            return [TOKENIZER.tool_open]
        case "</tool_call>":
            return [TOKENIZER.tool_close]
        case "<think>" | "</think>":
            return [TOKENIZER.answer_open]
        case _:
            return TOKENIZER.encode(part.encode("ascii", "ignore").decode())


def marked(renderer, text):
    """Marks where the text spells them, as a policy may sample either."""
    tokenizer = renderer.tokenizer
    return tokenizer.mark_pattern.sub(lambda found: tokenizer.mark(found.group()), text)


@pytest.mark.parametrize(
    ("name", "text", "tools", "settled"),
    [
        ("hermes", "Let me look.", (), "Let me look."),
        ("hermes", "Let me look. <tool", TOOLS, "Let me look."),
        ("llama", '{"name', TOOLS, ""),
        ("llama", '{"name', (), '{"name'),
        ("code-fence", "I run:\n``", TOOLS, "I run:"),
        ("code-fence", "I run:\n```rust", TOOLS, "I run:\n```rust"),
        ("code-fence", "I run:\n```python\n1", TOOLS, "I run:"),
        ("hermes", "<thi", (), ""),
        ("hermes", "a <thi", (), "a <thi"),
    ],
)
def test_text_is_settled_where_no_call_and_no_thought_can_come_of_it(name, text, tools, settled):
    renderer = renderers()[name]
    assert renderer.settled(renderer.tokenizer.encode(text), tools).content == settled


def test_a_thought_is_settled_while_it_goes_on():
    renderer = qwen3()
    whole = renderer.write(AssistantMessage("so", reasoning="first this, then that"), ())
    shown = [renderer.settled(whole[:place], ()) for place in range(len(whole))]
    assert any("first" in now.reasoning and not now.content for now in shown)
    assert (shown[-1].reasoning, shown[-1].content) == ("first this, then that", "so")


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("abc", ("x",), "abc"),
        ("abcOb", ("Observation",), "abc"),
        ("abcObservation: d", ("Observation",), "abc"),
        ("aab", ("abc", "aabc"), ""),
        ("", ("a",), ""),
        ("abc", (), "abc"),
    ],
)
def test_a_stop_string_is_not_shown_nor_what_may_be_its_beginning(text, stops, shown):
    assert before_stops(text, stops) == shown


# ---- random agents ----


class RandomStreams(RandomAgent):
    """Half of its calls are streamed; what it was shown has to be the beginning of what it is answered."""

    streamed = 0

    def __init__(self, model, random):
        super().__init__(model, random)
        complete = model.complete

        async def either(asked):
            if random.random() < 0.5:
                return await complete(asked)
            stream = Live(asked)
            taken = await complete(asked, stream)
            news = stream.news()
            assert [it.reply.content.startswith(text_of_choice(news, n)) for n, it in enumerate(taken)] == [True]
            self.streamed += bool(text_of_choice(news))
            return taken

        self.model = type("Either", (), {"complete": staticmethod(either)})


class Careless(Streamed):
    """Sometimes closes with another mark than it began with, or breaks a call, after it has begun to answer."""

    async def generate(self, request):
        before = [*self.seen.get(request.session, []), *request.new_ids]
        generated = await super().generate(request)
        if self.random.random() < 0.7:
            return generated
        renderer = self.renderer
        if renderer is WITH_REASONING:
            ids = [*TOKENIZER.encode("hm"), *answer("I say")[:-1], TOKENIZER.tool_close]
        else:
            broken = marked(renderer, "<think>hm</think>\n\nI say <tool_call>{</tool_call>")
            ids = [*renderer.tokenizer.encode(broken), renderer.end_id]
        ids = ids[: request.max_new_tokens]
        self.seen[request.session] = [*before, *ids]
        self.returned[-1] = (tuple(before), tuple(ids))
        stopped = "stop" if ids[-1] in request.stop_ids else "length"
        return Generated(tuple(ids), tuple(logprobs_of(before, ids)), (3,) * len(ids), stopped)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.booleans())
def test_each_sampled_token_of_streams_is_trained_once_in_the_context_in_which_it_was_sampled(seed, characters):
    asyncio.run(play_streams(seed, WITH_REASONING if characters else qwen3()))


async def play_streams(seed, renderer):
    policy = Careless(renderer, seed)
    model = proxy(policy)
    agent = RandomStreams(model, Random(seed))
    await agent.plays(12)
    played = trajectory(model)
    trained = sum(int(sample.loss_mask.sum()) for sample in samples_from_trajectory(played))
    assert trained == played.sampled_tokens == model.sampled_tokens - model.dropped_tokens
    await model.close()
    assert policy.open == set()


# ---- over a connection ----


def texts(path, events):
    """The pieces of text in a stream's events."""
    match path:
        case "/v1/chat/completions":
            deltas = [choice["delta"].get("content") for event in events for choice in event.get("choices", [])]
        case "/v1/messages":
            deltas = [event["delta"].get("text") for event in events if event["type"] == "content_block_delta"]
        case _:
            deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    return [delta for delta in deltas if delta]


class Reading:
    """A stream, event by event."""

    def __init__(self, reader):
        self.reader, self.left = reader, b""

    async def until(self, path, wanted):
        """The events up to the one with which the text is complete so far."""
        events = []
        while "".join(texts(path, events)) != wanted:
            length = int(await self.reader.readline(), 16)
            assert length, events
            piece = (await self.reader.readexactly(length + 2))[:-2].decode()
            lines = [line.removeprefix("data: ") for line in piece.split("\n") if line.startswith("data: ")]
            events += [json.loads(line) for line in lines if line != "[DONE]"]
        return events


@pytest.mark.parametrize("path", OF_PATH)
@pytest.mark.parametrize("renderer", [lambda: WITH_REASONING, qwen3], ids=["characters", "qwen3"])
async def test_text_arrives_while_the_turn_is_being_sampled(path, renderer):
    policy = meaning(renderer(), AssistantMessage("It is far from over"))
    policy.gate = asyncio.Event()
    async with endpoint(policy) as open_to:
        reader, writer = await open_to.connected()
        writer.write(request(path, OF_PATH[path]))
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        stream = Reading(reader)
        async with asyncio.timeout(10):
            first = await stream.until(path, "It is far from over")
        assert open_to.model.calls == []
        assert len(texts(path, first)) > 1
        policy.gate.set()
        rest = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert b"far" not in rest or path == RESPONSES  # where the end holds all of the answer again
        assert len(open_to.model.calls) == 1
        writer.close()


async def test_a_call_is_named_before_the_agent_has_anything_of_it(monkeypatch):
    policy = meaning(WITH_REASONING, AssistantMessage("first"), AssistantMessage("It is far from over"))
    named = []

    async def on_call(number, call):
        named.append(number)

    async def on_show(number, wrote):
        await asyncio.sleep(0)
        named.append((number, wrote))

    asked = OF_PATH[CHAT]
    async with endpoint(policy, on_call=on_call, on_show=on_show) as open_to:
        assert (await open_to.post(CHAT, asked | {"stream": False}))[0] == 200
        assert named == [0]
        policy.gate = asyncio.Event()
        reader, writer = await open_to.connected()
        writer.write(request(CHAT, asked))
        await reader.readuntil(b"\r\n\r\n")
        assert named == [0, (1, "")]
        await Reading(reader).until(CHAT, "It is far from over")
        policy.gate.set()
        await reader.readuntil(b"\r\n0\r\n\r\n")
        assert named == [0, (1, ""), 1]
        writer.close()


async def test_a_stream_that_is_broken_off_gives_its_name_back_with_what_was_read():
    policy = meaning(WITH_REASONING, AssistantMessage("first"), AssistantMessage("It is far from over"))
    named, back = [], asyncio.Event()

    async def on_show(number, wrote):
        named.append((number, wrote))
        if number == 0 and len(named) > 1:
            back.set()

    asked = OF_PATH[CHAT]
    async with endpoint(policy, on_show=on_show) as open_to:
        assert (await open_to.post(CHAT, asked | {"stream": False}))[0] == 200
        policy.gate = asyncio.Event()
        reader, writer = await open_to.connected()
        writer.write(request(CHAT, asked))
        await reader.readuntil(b"\r\n\r\n")
        await Reading(reader).until(CHAT, "It is far from over")
        writer.close()
        await asyncio.wait_for(back.wait(), 60)
        assert named == [(1, ""), (1, "It is far from over"), (0, None)]
        assert len(open_to.model.calls) == 1


@pytest.mark.parametrize("path", OF_PATH)
async def test_the_pieces_of_a_stream_are_what_an_answer_without_a_stream_says(path):
    spoken = AssistantMessage("Let me look at it.")
    async with endpoint(meaning(qwen3(), spoken)) as open_to:
        _, events = await open_to.post(path, OF_PATH[path])
        _, whole = await open_to.post(path, OF_PATH[path] | {"stream": False})
    match path:
        case "/v1/chat/completions":
            answered = whole["choices"][0]["message"]["content"]
        case "/v1/messages":
            answered = whole["content"][0]["text"]
        case _:
            answered = whole["output"][0]["content"][0]["text"]
    assert "".join(texts(path, events)) == answered == "Let me look at it."
    assert len(texts(path, events)) > 1
    if path == RESPONSES:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]


async def test_a_call_comes_whole_behind_the_text_before_it():
    spoken = AssistantMessage("I look.", AssistantMessage.calling("python", {"code": "1"}).requests)
    async with endpoint(meaning(qwen3(), spoken)) as open_to:
        _, events = await open_to.post(CHAT, OF_PATH[CHAT] | {"tools": [of_openai(TOOLS[0])]})
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    [calls] = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert (calls[0]["function"]["name"], json.loads(calls[0]["function"]["arguments"])) == ("python", {"code": "1"})
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


def of_openai(tool):
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


async def test_several_choices_are_streamed_beside_each_other():
    async with endpoint(Streamed(WITH_REASONING, 4)) as open_to:
        _, events = await open_to.post(CHAT, OF_PATH[CHAT] | {"n": 3})
        replies = [call.reply for call in open_to.model.calls]
    spoken_text = ["", "", ""]
    for event in events:
        for choice in event["choices"]:
            spoken_text[choice["index"]] += choice["delta"].get("content") or ""
    assert sorted(spoken_text) == sorted(reply.content for reply in replies)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_stop_string_is_never_shown(path):
    stops = {"stop": ["Observation:"]} if path == CHAT else {"stop_sequences": ["Observation:"]}
    spoken = AssistantMessage("Action: look\nObservation: made up")
    async with endpoint(meaning(qwen3(), spoken)) as open_to:
        _, events = await open_to.post(path, OF_PATH[path] | stops)
    assert "".join(texts(path, events)) == "Action: look\n"


@pytest.mark.parametrize(
    ("renderer", "ids", "shown", "answered"),
    [
        ("characters", lambda r: [*answer("I say")[:-1], TOKENIZER.tool_close], "I say", "I say"),
        ("characters", lambda r: [*answer("I say")[:-1], *call("x")[:-1], r.end_id], "I say", "I say<tool>x"),
        (
            "hermes",
            lambda r: [*r.tokenizer.encode(marked(r, "I say <tool_call>{</tool_call>")), r.end_id],
            "I say",
            "I say <tool_call>{</tool_call>",
        ),
    ],
)
async def test_what_turns_out_unreadable_goes_on_from_what_was_shown(renderer, ids, shown, answered):
    renderer = renderers()[renderer]
    policy = Spelled(renderer, ids(renderer), renderer.write(AssistantMessage("so"), ()))
    model = proxy(policy)
    start = Message("user", "start")
    stream = Live(Asked((start,), tuple(TOOLS)))
    [first] = await model.complete(Asked((start,), tuple(TOOLS)), stream)
    assert (text_of_choice(stream.news()), first.reply.content) == (shown, answered)
    read = [Message("tool", "no", request.name, request.id) for request in first.reply.requests]
    behind = (start, first.reply, *(read or [Message("user", "go on")]))
    await model.complete(Asked(behind, tuple(TOOLS)))
    # What the agent sends back is known: the second turn goes on from the ids of the first.
    assert [segment.numbers for segment in trajectory(model).segments] == [[0, 1]]


async def test_an_agent_that_hangs_up_in_the_middle_ends_its_turn_and_nothing_of_it_is_kept():
    policy = meaning(WITH_REASONING, AssistantMessage("It is far from over"))
    policy.gate = asyncio.Event()
    async with endpoint(policy) as open_to:
        reader, writer = await open_to.connected()
        writer.write(request(CHAT, OF_PATH[CHAT]))
        await reader.readuntil(b"\r\n\r\n")
        await Reading(reader).until(CHAT, "It is far from over")
        writer.close()
        while not open_to.model.unfinished:  # noqa: ASYNC110 - the proxy reports to nobody
            await asyncio.sleep(0)
        assert (open_to.model.calls, open_to.model.segments()) == ([], [])
        while policy.open:  # noqa: ASYNC110 - its session is given back
            await asyncio.sleep(0)
        policy.gate.set()
        assert (await open_to.post(CHAT, OF_PATH[CHAT]))[0] == 200


async def test_an_agent_that_does_not_read_its_stream_ends_alone():
    policy = meaning(WITH_REASONING, AssistantMessage("x" * 60))
    async with endpoint(policy, patience=Patience(request=5, answer=0.2), turn_tokens=64) as open_to:
        stuck = [await open_to.connected() for _ in range(3)]
        for _, writer in stuck:
            for _ in range(200):
                writer.write(request(CHAT, OF_PATH[CHAT]))
        assert (await open_to.post(CHAT, OF_PATH[CHAT]))[0] == 200
        for _, writer in stuck:
            writer.close()


async def test_what_is_refused_before_the_first_token_has_a_status_of_its_own():
    async with endpoint(scripted(WITH_REASONING), calls=1) as open_to:
        assert (await open_to.post(CHAT, OF_PATH[CHAT]))[0] == 200
        status, document = await open_to.post(CHAT, OF_PATH[CHAT])
        assert (status, document["error"]["code"]) == (403, "budget")


async def test_a_generator_that_fails_in_the_middle_ends_the_connection_without_an_end():
    class Failing(Streamed):
        async def stream(self, request, on_token):
            generated = await self.generate(request)
            for token, logprob in zip(generated.token_ids[:-1], generated.logprobs[:-1], strict=True):
                on_token(token, logprob)
                await asyncio.sleep(0.01)
            raise RuntimeError("no more")

    policy = Failing(WITH_REASONING, 1)
    policy.message = lambda: AssistantMessage("I say")
    policy.random.random = lambda: 1.0
    async with endpoint(policy) as open_to:
        reader, writer = await open_to.connected()
        writer.write(request(CHAT, OF_PATH[CHAT]))
        answered = await reader.read()
        assert b'"content": "y"' in answered
        assert b"[DONE]" not in answered
        assert not answered.endswith(b"\r\n0\r\n\r\n")
        assert str(open_to.model.failure) == "no more"
        writer.close()


async def test_a_policy_that_does_not_stream_answers_in_events_when_the_turn_is_over():
    async with endpoint(scripted(WITH_REASONING, AssistantMessage("it"))) as open_to:
        _, events = await open_to.post(CHAT, OF_PATH[CHAT])
    assert "".join(texts(CHAT, events)) == "it"


def test_a_long_turn_is_not_read_again_for_each_token(monkeypatch):
    monkeypatch.undo()

    class Counting:
        looked = 0

        def settled(self, token_ids, tools):
            self.looked += 1
            return WITH_REASONING.settled(token_ids, tools)

    monkeypatch.setattr(live, "SHOWN_EVERY_S", 0.0)
    renderer = Counting()
    turn = LiveTurn(Asked((Message("user", "x"),)), read_at_once(renderer, ()), lambda more: None)
    for token in [*answer("y" * 5000)[:-1]]:
        turn.sampled(token, 0.0)
    assert renderer.looked < 150
    assert len(turn.shown.content) > 4500


def test_calls_of_the_built_in_alphabet_show_nothing():
    ids = call("print(1)")
    assert all(WITH_REASONING.settled(ids[:place], TOOLS).content == "" for place in range(len(ids)))
