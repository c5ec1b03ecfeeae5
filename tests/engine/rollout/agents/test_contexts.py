"""What is kept of the messages of a call says of the next one's what it would say by itself; and a history that nobody
sampled costs what it is long, and holds nobody up."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import TOKENIZER, WITH_REASONING

from engine.rollout.agents.asked import Asked, Entry, RequestRefused
from engine.rollout.agents.contexts import Context, Contexts, Spoken, _Digests, extended
from engine.rollout.renderers.characters import CharacterRenderer
from engine.rollout.renderers.chat import ChatRenderer, chat_renderer
from engine.rollout.renderers.contract import Renderer
from engine.rollout.renderers.template import ChatTemplate
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema
from tests.engine.rollout.renderers.test_chat import FENCED, NATIVE, PYTHON, folder, renderer

ENTRIES = [
    Message("user", "a"),
    Message("user", "b"),
    Message("tool", "a", "t", "1"),
    AssistantMessage("a"),
    AssistantMessage("a", reasoning="hm"),
    *(AssistantMessage(requests=(ToolRequest("t", {"x": value}, "1"),)) for value in (1, True, 1.0, "1")),
]
"""Python takes 1, True and 1.0 for equal, which JSON does not."""
CALLS = st.lists(
    st.tuples(st.lists(st.sampled_from(ENTRIES), min_size=1, max_size=5), st.sampled_from(["", "t"])),
    min_size=2,
    max_size=6,
)


@given(CALLS)
def test_digests_do_not_depend_on_the_calls_before(calls: list[tuple[list[Message | AssistantMessage], str]]) -> None:
    kept = _Digests()
    for messages, tool in calls:
        asked = Asked(tuple(messages), (ToolSchema(tool),) if tool else ())
        assert kept.of(asked) == _Digests().of(asked)


def test_each_beginning_of_the_messages_has_a_digest_of_its_own() -> None:
    digests = [_Digests().of(Asked((ENTRIES[0], entry)))[-1] for entry in ENTRIES]
    assert len(set(digests)) == len(ENTRIES) - 1, "only the two that differ by a thought are one"


# ---- a history that nobody sampled ----

START = Message("user", "start")
ROOM = 100_000


def history(turns: int, content: str = "x") -> Asked:
    spoken = (entry for number in range(turns) for entry in (AssistantMessage(content), Message("user", str(number))))
    return Asked((START, *spoken))


def step_by_step(speak: Renderer, begun: Context, whole: Context) -> list[Context]:
    """The contexts on the way from ``begun`` to ``whole``, where the renderer is asked after each turn."""
    contexts = [begun]
    for exchange in whole.conversation.exchanges[len(begun.conversation.exchanges) :]:
        contexts.append(extended(speak, contexts[-1], [exchange]))
    return contexts


def read_of(context: Context) -> Context:
    """What is read of it, whatever its exchanges are: no two of those are equal."""
    return replace(context, conversation=replace(context.conversation, exchanges=()))


WORDS = st.sampled_from(["a", "two words", "né <b>", "```\nx\n```"])
SPOKEN = st.lists(
    st.tuples(WORDS, st.sampled_from(["", "hm"]), st.booleans(), st.sampled_from(["tool", "user"])), max_size=5
)


@pytest.mark.parametrize("name", [*NATIVE, "qwen3/on", "qwen3/off", *FENCED])
@settings(max_examples=30, deadline=None)
@given(SPOKEN, st.booleans())
async def test_turns_that_nobody_sampled_are_read_as_if_each_had_been_asked_about(name, spoken, goes_on):
    model, _, reasoning = name.partition("/")
    speak = renderer(model, reasoning or "auto")
    thinks, tools = name in ("qwen3", "qwen3/on"), (PYTHON,) if model in NATIVE else ()
    messages, contexts = [START], Contexts(speak)
    if goes_on:  # from a turn that was sampled
        begun, reply = await contexts.find(Asked((START,), tools), ROOM), AssistantMessage("first")
        token_ids = tuple(speak.write(reply, tools))
        contexts.spoke(0, begun.digest, reply, Spoken(begun.context, token_ids, speak.parse(token_ids, tools)))
        messages += [reply, Message("user", "on")]
    known = (await contexts.find(Asked(tuple(messages), tools), ROOM)).context
    for number, (content, thought, calls, who) in enumerate(spoken):
        turn = AssistantMessage(content, reasoning=thought if thinks else "")
        if calls and tools:
            turn = replace(turn, content="", requests=(ToolRequest("python", {"code": content}, f"c{number}"),))
        read = [Message("tool", "2", "python", request.id) for request in turn.requests]
        messages += [turn, *read, *([Message("user", content)] if not read or who == "user" else [])]
    found = (await contexts.find(Asked(tuple(messages), tools), ROOM)).context
    assert read_of(found) == read_of(step_by_step(speak, known, found)[-1])


def rendered_characters(turns: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """What the template writes in order to read so many turns that nobody sampled."""
    written, render = list[int](), ChatTemplate._rendered

    def counted(template: ChatTemplate, variables: dict[str, object]) -> str:
        text = render(template, variables)
        written.append(len(text))
        return text

    with monkeypatch.context() as patched:
        patched.setattr(ChatTemplate, "_rendered", counted)
        asyncio.run(Contexts(chat_renderer(folder("qwen3"))).find(history(turns), ROOM))
    return sum(written)


def test_the_template_writes_a_history_once_and_not_with_each_of_its_turns(monkeypatch):
    assert rendered_characters(120, monkeypatch) < 5 * rendered_characters(30, monkeypatch)


async def test_others_go_on_while_a_long_history_is_read():
    finding, passes = asyncio.ensure_future(Contexts(WITH_REASONING).find(history(100), ROOM)), 0
    while not finding.done():
        await asyncio.sleep(0)
        passes += 1
    assert passes >= 100


async def test_a_history_that_cannot_fit_is_refused_before_all_of_it_is_read():
    class Counting(CharacterRenderer):
        quoted = 0

        def quote(self, content):
            self.quoted += 1
            return super().quote(content)

    speak = Counting(TOKENIZER, reasoning=True)
    with pytest.raises(RequestRefused, match="context has 100: send less") as refusal:
        await Contexts(speak).find(history(1000, "x" * 20), 100)
    assert refusal.value.kind == "context"
    assert speak.quoted <= 10


async def test_a_history_that_fits_once_its_thoughts_have_left_is_taken():
    speak: ChatRenderer = renderer("qwen3")
    turns = [
        entry
        for number in range(6)
        for entry in (
            AssistantMessage(requests=(ToolRequest("python", {"code": "1"}, f"c{number}"),), reasoning="so " * 100),
            Message("tool", "1", "python", f"c{number}"),
        )
    ]
    asked = Asked((START, *turns, AssistantMessage("1", reasoning="hm"), Message("user", "thanks")), (PYTHON,))
    begun = (await Contexts(speak).find(replace(asked, messages=(START,)), ROOM)).context
    whole = (await Contexts(speak).find(asked, ROOM)).context
    tokens = len(whole.token_ids)
    assert max(len(context.token_ids) for context in step_by_step(speak, begun, whole)) > 2 * tokens
    assert read_of((await Contexts(speak).find(asked, tokens)).context) == read_of(whole)


async def test_messages_of_one_turn_are_joined_at_once(monkeypatch):
    looked_at, made = list[int](), AssistantMessage.__post_init__

    def counted(message):
        looked_at.append(len(message.requests))
        made(message)

    turns: list[Entry] = [AssistantMessage(requests=(ToolRequest("t", {}, str(number)),)) for number in range(50)]
    results = [Message("tool", "x", "t", str(number)) for number in range(50)]
    monkeypatch.setattr(AssistantMessage, "__post_init__", counted)
    with pytest.raises(RequestRefused):  # this alphabet makes one call a turn
        await Contexts(WITH_REASONING).find(Asked((START, *turns, *results)), ROOM)
    assert looked_at == [50]
