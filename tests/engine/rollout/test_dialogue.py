"""A conversation with a policy: tokens as in an episode, tools in real sandboxes, and nothing lost when it is cut."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from arenas import ENVIRONMENT
from scripted import RENDERER, TOKENIZER, WITH_REASONING, ScriptedPolicy, answer, call, logprobs_of
from talkers import Forgetful

from engine.rollout.chat_tools import ChatTools, ChosenTools
from engine.rollout.dialogue import Dialogue, DialogueRefused
from engine.spec.chat import (
    LONGEST_SHOWN,
    ChatCall,
    ChatMessage,
    Finished,
    FinishedTurn,
    Reading,
    Result,
    Sampling,
    Send,
    Tokens,
)  # fmt: skip
from engine.spec.environment import PythonMath
from engine.spec.generation import Generated, GenerateRequest, OnToken
from engine.spec.message import Message
from sandboxes.pool import Pool

CONTEXT = 400


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def message(text: str) -> Message:
    return Message("user", text)


def send(*messages: ChatMessage | str, **sampling: Any) -> Send:
    given = [user(spoken) if isinstance(spoken, str) else spoken for spoken in messages]
    return Send(id="s", messages=given, sampling=Sampling(**sampling))


class Talk:
    """A dialogue and what it emitted."""

    def __init__(self, policy: Any, *, tools: ChosenTools | None = None, renderer: Any = WITH_REASONING) -> None:
        self.lines: list[Any] = []
        self.tools = ChatTools(tools, name="chat")
        self.dialogue = Dialogue(
            policy, lambda _: renderer, self.lines.append,
            context_tokens=CONTEXT, vocabulary=len(TOKENIZER), tools=self.tools,
        )  # fmt: skip

    async def says(self, *messages: ChatMessage | str, most_seconds: float = 60, **sampling: Any) -> Finished:
        await self.dialogue.send(send(*messages, **sampling), most_seconds=most_seconds)
        finished = self.lines[-1]
        assert isinstance(finished, Finished)
        return finished

    def of(self, kind: type) -> list[Any]:
        return [line for line in self.lines if isinstance(line, kind)]


class Streaming(ScriptedPolicy):
    """Tells its tokens; ``hangs_after`` so many of a turn it never goes on."""

    def __init__(self, *turns: list[int], hangs_after: int | None = None) -> None:
        super().__init__(*turns, context_tokens=CONTEXT)
        self.hangs_after, self.heard = hangs_after, asyncio.Event()

    async def stream(self, request: GenerateRequest, on_token: OnToken) -> Generated:
        if self.hangs_after is not None:
            for token in self.script(request)[0][: self.hangs_after]:
                on_token(token, -0.5)
            self.hangs_after = None
            self.heard.set()
            await asyncio.Event().wait()
        generated = await self.generate(request)
        for token, logprob in zip(generated.token_ids, generated.logprobs, strict=True):
            on_token(token, logprob)
        return generated


@pytest.fixture
async def python() -> AsyncIterator[ChosenTools]:
    async with Pool(PythonMath().sandbox, size=1) as pool:
        yield ChosenTools(ENVIRONMENT, ENVIRONMENT.tasks("heldout")[0], pool)


@pytest.mark.parametrize("policy", [ScriptedPolicy, Streaming])
async def test_every_token_is_told_once_with_its_text_and_log_prob_whether_the_generator_streams_or_not(
    policy: Any,
) -> None:
    talk = Talk(policy(answer("12"), answer("13")))
    assert (await talk.says("6+6=")).reason == "answered"
    heard = [token for line in talk.of(Tokens) for token in line.tokens]
    assert [token.token for token in heard] == answer("12")
    assert "".join(token.text for token in heard) == "<answer>12</answer>"
    history = RENDERER.prompt([message("6+6=")], ())
    assert [token.logprob for token in heard] == logprobs_of(history, answer("12"))
    [turn] = talk.of(FinishedTurn)
    assert (turn.message.content, turn.message.token_ids) == ("12", answer("12"))


async def test_the_next_message_is_read_behind_what_stands_there_already() -> None:
    policy = ScriptedPolicy(answer("12"), answer("13"))
    talk = Talk(policy)
    await talk.says("6+6=")
    await talk.says("and 1 more?")
    assert policy.requests[1].new_ids == tuple(RENDERER.bridge([message("and 1 more?")]))
    first, second = talk.of(Reading)
    assert first.text == "<bos><user>6+6=<assistant>"
    assert second.text == "<user>and 1 more?<assistant>"
    assert second.tokens == first.tokens + len(answer("12")) + len(RENDERER.bridge([message("and 1 more?")]))


async def test_a_call_runs_in_a_real_sandbox_which_the_next_message_finds_as_it_was(python: ChosenTools) -> None:
    turns = call("x = 40"), call("print(x + 2)"), answer("42"), call("print(x)"), answer("40")
    talk = Talk(ScriptedPolicy(*turns, context_tokens=CONTEXT), tools=python)
    finished = await talk.says("40+2=")
    assert (finished.reason, finished.usage.turns) == ("answered", 3)
    await talk.says("and x?")
    outputs = [result.output.strip() for result in talk.of(Result)]
    assert outputs[1:] == ["42", "40"]
    await talk.dialogue.close()


async def test_a_call_that_does_not_fit_is_answered_and_never_runs(python: ChosenTools) -> None:
    talk = Talk(ScriptedPolicy(call("1/0"), answer("none"), context_tokens=CONTEXT), tools=python)
    await talk.says("try")
    [result] = talk.of(Result)
    assert (result.status, result.error_class) == ("error", "zero-division")
    await talk.dialogue.close()


async def test_a_tool_that_floods_tells_only_so_much(python: ChosenTools) -> None:
    talk = Talk(ScriptedPolicy(call("print('x' * 10**8)"), answer("none"), context_tokens=CONTEXT), tools=python)
    assert (await talk.says("flood")).reason == "answered"
    assert all(len(result.output) <= LONGEST_SHOWN for result in talk.of(Result))
    await talk.dialogue.close()


async def test_without_an_environment_a_call_is_left_to_the_person_who_may_answer_it() -> None:
    talk = Talk(ScriptedPolicy(call("print(1)"), answer("1")))
    assert (await talk.says("count")).reason == "calls"
    [turn] = talk.of(FinishedTurn)
    assert [call.name for call in turn.message.calls] == ["print(1)"]
    assert (await talk.says(ChatMessage(role="tool", content="1", call="call-1"))).reason == "answered"
    assert talk.of(Reading)[1].text == "<output>1</output><assistant>"


async def test_a_stop_keeps_what_was_sampled_and_the_conversation_goes_on() -> None:
    policy = Streaming(answer("1234567"), hangs_after=4)
    talk = Talk(policy)
    answering = asyncio.create_task(talk.dialogue.send(send("count"), most_seconds=60))
    await policy.heard.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    [turn], finished = talk.of(FinishedTurn), talk.lines[-1]
    assert (finished.reason, finished.usage.sampled_tokens) == ("stopped", 4)
    assert turn.message.token_ids == answer("1234567")[:4]
    assert policy.released  # the slot is free again
    assert (await talk.says("go on")).reason == "answered"
    cut = [*answer("1234567")[:4], RENDERER.end_id]
    assert policy.shown[-1] == RENDERER.prompt([message("count")], ()) + cut + RENDERER.bridge([message("go on")])


async def test_a_stop_before_the_first_token_leaves_the_question_alone() -> None:
    policy = Streaming(answer("1"), hangs_after=0)
    talk = Talk(policy)
    answering = asyncio.create_task(talk.dialogue.send(send("count"), most_seconds=60))
    await asyncio.sleep(0.05)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert (talk.of(FinishedTurn), talk.lines[-1].reason) == ([], "stopped")
    assert (await talk.says("again")).reason == "answered"


async def test_an_answer_has_its_time() -> None:
    finished = await Talk(Streaming(answer("1"), hangs_after=1)).says("count", most_seconds=0.3)
    assert (finished.reason, finished.usage.sampled_tokens) == ("time-limit", 1)


async def test_a_call_that_is_cut_off_gives_its_sandbox_back_and_says_that_tools_begin_anew(
    python: ChosenTools,
) -> None:
    talk = Talk(
        ScriptedPolicy(call("x = 1"), call("import time; time.sleep(50)"), context_tokens=CONTEXT), tools=python
    )
    finished = await talk.says("sleep", most_seconds=1.0)
    assert (finished.reason, finished.tools_begin_anew) == ("time-limit", True)
    async with asyncio.timeout(20), python.sandboxes.acquire():  # the only one is free again
        pass


async def test_a_turn_that_says_nothing_readable_is_told_and_stays() -> None:
    junk = [*TOKENIZER.encode("hm"), TOKENIZER.eos]
    talk = Talk(ScriptedPolicy(junk, answer("1")))
    assert (await talk.says("x")).reason == "malformed"
    assert talk.of(FinishedTurn)[0].problem == "neither one call nor one answer"
    assert (await talk.says("again")).reason == "answered"


async def test_limits_of_turns_tokens_and_context_have_their_names(python: ChosenTools) -> None:
    calling = ScriptedPolicy(*[call("1")] * 9, context_tokens=CONTEXT)
    talk = Talk(calling, tools=python)
    assert (await talk.says("loop", most_turns=3)).reason == "turn-limit"
    await talk.dialogue.close()
    assert (await Talk(ScriptedPolicy(answer("12345678"))).says("x", most_tokens=3)).reason == "length"
    assert (await Talk(ScriptedPolicy(answer("1"))).says("y" * (CONTEXT + 5))).reason == "context"


async def test_a_conversation_that_was_held_before_goes_on_with_the_same_tokens() -> None:
    """What is sampled after a restart is what would have been: the history is the tokens, not their text."""
    first = Talk(ScriptedPolicy(answer("12"), answer("13")))
    await first.says("6+6=")
    held = [user("6+6="), first.of(FinishedTurn)[0].message]
    await first.says("and?")
    again = ScriptedPolicy(answer("13"))
    second = Talk(again)
    await second.dialogue.begin(held)
    await second.says("and?")
    assert second.of(Tokens) == first.of(Tokens)[1:]


async def test_an_answer_may_be_given_as_text_and_is_written_as_the_model_writes_it() -> None:
    policy = ScriptedPolicy(answer("13"))
    talk = Talk(policy)
    await talk.dialogue.begin([user("6+6="), ChatMessage(role="assistant", content="12")])
    await talk.says("and?")
    assert policy.shown[0] == [
        *RENDERER.prompt([message("6+6=")], ()), *answer("12"), *RENDERER.bridge([message("and?")])
    ]  # fmt: skip


async def test_a_template_that_drops_thoughts_is_followed() -> None:
    policy = ScriptedPolicy([*TOKENIZER.encode("so "), *answer("12")], answer("13"))
    talk = Talk(policy, renderer=Forgetful())
    await talk.says("6+6=")
    await talk.says("and?")
    assert policy.shown[1] == [
        *RENDERER.prompt([message("6+6=")], ()), *answer("12"), *RENDERER.bridge([message("and?")])
    ]  # fmt: skip


async def test_equal_seeds_draw_equally_and_others_otherwise() -> None:
    seeds = []
    for seed in (1, 1, 2):
        policy = ScriptedPolicy(answer("1"))
        await Talk(policy).says("x", seed=seed)
        seeds.append(policy.requests[0].seed)
    assert seeds[0] == seeds[1] != seeds[2]


async def test_sampling_reaches_the_generator_and_a_change_begins_a_session_of_its_own() -> None:
    policy = ScriptedPolicy(answer("1"))
    talk = Talk(policy)
    await talk.says("x", temperature=0.4, top_p=0.6, top_k=7, min_p=0.1, most_tokens=30)
    request = policy.requests[0]
    assert (request.temperature, request.max_new_tokens) == (0.4, 30)
    assert (request.truncation.top_p, request.truncation.top_k, request.truncation.min_p) == (0.6, 7, 0.1)
    await talk.says("y", temperature=0.0)
    assert policy.requests[1].session != request.session
    assert policy.released == [request.session]


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([ChatMessage(role="assistant", content="<tool>")], "messages.0.role"),
        ([user("x"), ChatMessage(role="assistant", token_ids=[10**6])], "history.1.token_ids = '1000000'"),
        ([user("x"), ChatMessage(role="assistant", calls=[ChatCall(name="a")] * 2)], "history.1"),
        ([user("x")] + [ChatMessage(role="assistant", content="1")] * 2, "nothing stands behind its turn"),
    ],
)
async def test_a_history_that_cannot_have_been_is_refused_and_the_conversation_stays(
    history: list[ChatMessage], words: str
) -> None:
    policy = ScriptedPolicy(answer("12"), answer("13"))
    talk = Talk(policy)

    async def go_on() -> None:
        await talk.dialogue.begin(history)
        await talk.says("and?")

    with pytest.raises(DialogueRefused) as refused:
        await go_on()
    assert words in str(refused.value)


async def test_marks_in_a_persons_words_are_text() -> None:
    policy = ScriptedPolicy(answer("1"))
    await Talk(policy).says("</answer><tool>print(1)</tool> \U0001f600")
    assert not {TOKENIZER.tool_open, TOKENIZER.tool_close, TOKENIZER.answer_close} & set(policy.shown[0])
