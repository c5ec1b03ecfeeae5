"""What clients of the real APIs send and expect, written from those APIs' documentation."""

import asyncio
import json

import pytest

from engine.spec.generation import Generated
from engine.spec.message import AssistantMessage, ToolRequest
from tests.engine.rollout.agents.endpoints import endpoint, request, scripted
from tests.engine.rollout.agents.test_capture import qwen3

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HELLO = {"role": "user", "content": "hello"}
GO_ON = {"role": "user", "content": "go on"}
OF_PATH = {
    CHAT: {"model": "m", "messages": [HELLO]},
    MESSAGES: {"model": "m", "max_tokens": 300, "messages": [HELLO]},
    RESPONSES: {"model": "m", "input": "hello"},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}
MESSAGES_TOOL = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
RESPONSES_TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA, "strict": True}
TOOL_OF = {CHAT: CHAT_TOOL, MESSAGES: MESSAGES_TOOL, RESPONSES: RESPONSES_TOOL}
LOOK = AssistantMessage("I look.", (ToolRequest("look", {"a": "1"}),))
LOOK_TWICE = AssistantMessage("I look.", (ToolRequest("look", {"a": "1"}), ToolRequest("look", {"a": "2"})))
DONE = AssistantMessage("done")


class Asked:
    """What one request came to."""

    def __init__(self, status, document, model):
        self.status, self.document, self.model = status, document, model

    @property
    def read(self):
        """The text that the model read for the last turn of the first segment."""
        assert self.status == 200, self.document
        return self.model.segments()[0].turns[-1].context_text

    def refused_as(self, kind, *words):
        assert self.status == 400, self.document
        written = json.dumps(self.document, ensure_ascii=False)
        assert dict(self.model.refused) == {kind: 1}
        for word in words:
            assert word in written
        return True


async def asked(path, change=None, *turns):
    async with endpoint(scripted(qwen3(), *turns), turn_tokens=400) as open_to:
        status, document = await open_to.post(path, OF_PATH[path] | (change or {}))
        return Asked(status, document, open_to.model)


async def asked_raw(raw, seconds=2.0):
    """All bytes that come back for these, until the connection is closed or nothing more comes."""
    async with endpoint(scripted(qwen3()), turn_tokens=400) as open_to:
        reader, writer = await open_to.connected()
        writer.write(raw)
        received = b""
        try:
            while piece := await asyncio.wait_for(reader.read(2**16), seconds if not received else 0.2):
                received += piece
        except TimeoutError:
            pass
        writer.close()
        return received, open_to.model


def sampling(*texts):
    """A policy that samples these texts as they are written, with the marks of calls as marks."""
    renderer = qwen3()
    policy, left = scripted(renderer), list(texts)

    def ids_of(text):
        ids = []
        for number, part in enumerate(text.replace("</tool_call>", "<tool_call>").split("<tool_call>")):
            mark = renderer.tokenizer.mark("<tool_call>" if number % 2 else "</tool_call>")
            ids += renderer.tokenizer.encode(mark) if number else []
            ids += renderer.tokenizer.encode(part) if part else []
        return [*ids, renderer.end_id]

    async def generate(wanted):
        ids = tuple(ids_of(left.pop(0) if len(left) > 1 else left[0])[: wanted.max_new_tokens])
        stopped = "stop" if ids[-1] == renderer.end_id else "length"
        policy.returned.append(((), ids))
        return Generated(ids, (-1.0,) * len(ids), (0,) * len(ids), stopped)

    async def rewind(session, tokens):
        pass

    policy.generate, policy.rewind = generate, rewind
    return policy


def text(content, **more):
    return {"type": "text", "text": content, **more}


def by_assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def called(*ids, arguments='{"a": "1"}', content=None):
    calls = [{"id": one, "type": "function", "function": {"name": "look", "arguments": arguments}} for one in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(content, one="c1", **more):
    return {"role": "tool", "tool_call_id": one, "content": content, **more}


def used(*ids):
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": one, "name": "look", "input": {"a": "1"}} for one in ids],
    }


def results(*blocks):
    return {"role": "user", "content": list(blocks)}


def of_use(content, one="t1", **more):
    return {"type": "tool_result", "tool_use_id": one, "content": content, **more}


def item_call(one="c1", **more):
    return {"type": "function_call", "call_id": one, "name": "look", "arguments": '{"a": "1"}', **more}


def item_output(output, one="c1", **more):
    return {"type": "function_call_output", "call_id": one, "output": output, **more}


# ---- content ----


async def test_a_list_of_parts_is_read_as_its_text():
    answer = await asked(CHAT, {"messages": [{"role": "user", "content": [text("one "), text("two")]}]})
    assert "user\none two<|im_end|>" in answer.read


async def test_parts_of_the_responses_api_are_read_as_their_text():
    parts = [{"type": "input_text", "text": "one "}, {"type": "input_text", "text": "two"}]
    assert "user\none two<|im_end|>" in (await asked(RESPONSES, {"input": [{"role": "user", "content": parts}]})).read


async def test_marks_for_a_cache_change_nothing_that_is_read():
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    plain = await asked(MESSAGES, {"system": "be", "tools": [MESSAGES_TOOL]})
    marked = await asked(
        MESSAGES,
        {
            "system": [text("be", **mark)],
            "messages": [{"role": "user", "content": [text("hello", **mark)]}],
            "tools": [MESSAGES_TOOL | mark],
            **mark,
        },
    )
    assert plain.read == marked.read


async def test_a_system_of_several_blocks_is_read_in_their_order():
    answer = await asked(MESSAGES, {"system": [text("first."), text("second.")]})
    assert answer.read.index("first.") < answer.read.index("second.") < answer.read.index("hello")


@pytest.mark.parametrize("system", [None, "", []])
async def test_an_empty_system_is_as_none(system):
    assert (await asked(MESSAGES, {"system": system})).read == (await asked(MESSAGES)).read


@pytest.mark.parametrize("content", ["  hello \n", "hello", "hello\n\n", "\thello"])
async def test_white_space_of_a_message_is_read_as_it_was_sent(content):
    answer = await asked(CHAT, {"messages": [{"role": "user", "content": content}]})
    assert f"user\n{content}<|im_end|>" in answer.read


async def test_white_space_that_the_agent_puts_into_an_assistants_message_is_read():
    answer = await asked(CHAT, {"messages": [HELLO, by_assistant(" a  "), GO_ON]})
    assert "assistant\n a  <|im_end|>" in answer.read


@pytest.mark.parametrize("content", ["\U0001f600 é \u200b\u202e", "\x1b[31m\r\n\x7f", "\ufeffx"])
async def test_unusual_characters_are_read_as_they_were_sent(content):
    assert content in (await asked(CHAT, {"messages": [{"role": "user", "content": content}]})).read


@pytest.mark.parametrize("path", OF_PATH)
async def test_half_a_surrogate_pair_is_refused_as_malformed(path):
    name = "input" if path == RESPONSES else "messages"
    answer = await asked(path, {name: [{"role": "user", "content": "\ud83d"}]})
    assert answer.refused_as("malformed", "surrogate")


@pytest.mark.parametrize("content", [5, {"type": "text", "text": "x"}, ["x"], True])
async def test_content_of_another_kind_is_refused_by_its_field(content):
    answer = await asked(CHAT, {"messages": [{"role": "user", "content": content}]})
    assert answer.refused_as("malformed", "messages.0.content")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
    ],
)
async def test_a_part_that_is_no_text_is_refused_by_its_place_and_kind(part):
    answer = await asked(CHAT, {"messages": [{"role": "user", "content": [text("look"), part]}]})
    assert answer.refused_as("conversation", "messages.0.content", part["type"])


# ---- who speaks when ----


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_developer_is_read_as_a_system(path):
    name = "input" if path == RESPONSES else "messages"
    answer = await asked(path, {name: [{"role": "developer", "content": "be brief"}, HELLO]})
    assert "system\nbe brief<|im_end|>" in answer.read


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_a_reminder_in_the_middle_stays_in_its_place(role):
    messages = [HELLO, by_assistant("a"), {"role": role, "content": "remember"}, GO_ON]
    read = (await asked(CHAT, {"messages": messages})).read
    assert read.index("hello") < read.index("remember") < read.index("go on")


async def test_instructions_stand_before_a_system_message_of_the_input():
    asks = {"instructions": "first", "input": [{"role": "system", "content": "second"}, HELLO]}
    read = (await asked(RESPONSES, asks)).read
    assert read.index("first") < read.index("second") < read.index("hello")


@pytest.mark.parametrize("path", OF_PATH)
async def test_two_messages_of_one_user_are_both_read(path):
    name = "input" if path == RESPONSES else "messages"
    read = (await asked(path, {name: [HELLO, GO_ON]})).read
    assert read.index("hello") < read.index("go on")


@pytest.mark.parametrize("path", OF_PATH)
async def test_two_messages_of_the_assistant_are_both_read(path):
    """Consecutive turns of one role are taken by all three APIs; Anthropic's joins them into one."""
    name = "input" if path == RESPONSES else "messages"
    read = (await asked(path, {name: [HELLO, by_assistant("one"), by_assistant("two"), GO_ON]})).read
    assert read.index("one") < read.index("two") < read.index("go on")


@pytest.mark.parametrize("path", OF_PATH)
async def test_a_last_message_of_the_assistants_is_refused_and_says_why(path):
    name = "input" if path == RESPONSES else "messages"
    answer = await asked(path, {name: [HELLO, by_assistant("{")]})
    assert answer.refused_as("conversation", "assistant", "continues no text")


@pytest.mark.parametrize("input_", [[], [HELLO, by_assistant("a")]])
async def test_a_refused_input_of_responses_is_named_as_the_caller_knows_it(input_):
    """The field is ``input``; a request to Responses has no field of the name ``messages``."""
    answer = await asked(RESPONSES, {"input": input_})
    assert answer.refused_as("conversation")
    assert answer.document["error"]["param"].startswith("input")


@pytest.mark.parametrize("content", ["", None, []])
async def test_an_empty_message_of_the_assistants_is_taken(content):
    assert "go on" in (await asked(CHAT, {"messages": [HELLO, by_assistant(content), GO_ON]})).read


async def test_an_empty_answer_of_anthropics_form_can_be_sent_back():
    assert "go on" in (await asked(MESSAGES, {"messages": [HELLO, by_assistant([]), GO_ON]})).read


async def test_a_refusal_that_the_assistant_spoke_is_read_and_not_lost():
    """A history that was begun elsewhere holds it; the real API reads the text of a refusal."""
    answer = await asked(CHAT, {"messages": [HELLO, by_assistant(None, refusal="I will not."), GO_ON]})
    assert answer.status == 400 or "I will not." in answer.read


async def test_a_message_as_a_client_of_openai_dumps_it_is_taken():
    dumped = by_assistant("a", refusal=None, annotations=[], audio=None, function_call=None, tool_calls=None)
    assert "assistant\na<|im_end|>" in (await asked(CHAT, {"messages": [HELLO, dumped, GO_ON]})).read


async def test_a_message_as_a_client_of_anthropic_dumps_it_is_taken():
    block = {"type": "text", "text": "a", "citations": None}
    assert "assistant\na<|im_end|>" in (await asked(MESSAGES, {"messages": [HELLO, by_assistant([block]), GO_ON]})).read


@pytest.mark.parametrize("role", ["system", "developer", "tool", "wizard", "", None, 5])
async def test_a_role_that_anthropics_api_lacks_is_refused_with_those_it_has(role):
    answer = await asked(MESSAGES, {"messages": [{"role": role, "content": "x"}]})
    assert answer.refused_as("conversation", "messages.0.role", "user")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "eHg="},
    ],
)
async def test_thoughts_of_another_model_are_refused_by_their_place(block):
    answer = await asked(MESSAGES, {"messages": [HELLO, by_assistant([block, text("a")]), GO_ON]})
    assert answer.refused_as("conversation", "messages.1.content", block["type"])


async def test_an_item_that_nobody_can_read_is_refused_without_words_of_python():
    answer = await asked(RESPONSES, {"input": [HELLO, {"type": "reasoning", "id": "rs_1", "summary": []}, GO_ON]})
    assert answer.refused_as("conversation", "input.1", "reasoning")
    assert "None" not in answer.document["error"]["message"]


# ---- calls and their results ----


async def test_results_that_come_in_another_order_are_read_with_their_own_calls():
    """Results belong to calls by their ids; which tool was faster says nothing."""
    calls = called("c1", "c2")
    calls["tool_calls"][1]["function"]["arguments"] = '{"a": "2"}'
    in_order = {"messages": [HELLO, calls, result("of one", "c1"), result("of two", "c2")], "tools": [CHAT_TOOL]}
    swapped = {"messages": [HELLO, calls, result("of two", "c2"), result("of one", "c1")], "tools": [CHAT_TOOL]}
    assert (await asked(CHAT, swapped)).read == (await asked(CHAT, in_order)).read


async def test_results_of_anthropics_form_in_another_order_are_read_with_their_own_calls():
    in_order = {"messages": [HELLO, used("t1", "t2"), results(of_use("of one", "t1"), of_use("of two", "t2"))]}
    swapped = {"messages": [HELLO, used("t1", "t2"), results(of_use("of two", "t2"), of_use("of one", "t1"))]}
    assert (await asked(MESSAGES, swapped)).read == (await asked(MESSAGES, in_order)).read


async def test_results_of_sampled_calls_in_another_order_stand_at_their_own_calls():
    async with endpoint(scripted(qwen3(), LOOK_TWICE, DONE), turn_tokens=400) as open_to:
        asks = OF_PATH[CHAT] | {"tools": [CHAT_TOOL]}
        _, document = await open_to.post(CHAT, asks)
        message = document["choices"][0]["message"]
        first, second = (call["id"] for call in message["tool_calls"])
        back = [result("of two", second), result("of one", first)]
        assert (await open_to.post(CHAT, asks | {"messages": [HELLO, message, *back]}))[0] == 200
        [segment] = open_to.model.segments()
        assert [call.output for call in segment.turns[0].tool_calls] == ["of one", "of two"]
        read = segment.turns[1].context_text
        assert read.index("of one") < read.index("of two")


async def test_a_result_of_several_parts_is_read_as_their_text():
    answer = await asked(CHAT, {"messages": [HELLO, called("c1"), result([text("one "), text("two")])]})
    assert "one two" in answer.read


async def test_a_result_with_the_name_of_its_tool_is_taken():
    assert "yes" in (await asked(CHAT, {"messages": [HELLO, called("c1"), result("yes", name="look")]})).read


@pytest.mark.parametrize("output", ["yes", [{"type": "input_text", "text": "y"}, {"type": "input_text", "text": "es"}]])
async def test_the_output_of_a_function_may_be_a_text_or_parts(output):
    items = [HELLO, item_call(id="fc_1", status="completed"), item_output(output, id=None, status="completed")]
    assert "yes" in (await asked(RESPONSES, {"input": items})).read


async def test_a_text_and_a_call_of_one_turn_are_one_message():
    spoken = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
    read = (await asked(RESPONSES, {"input": [HELLO, spoken, item_call(), item_output("yes")]})).read
    assert "I look.\n<tool_call>" in read


@pytest.mark.parametrize("content", ["boom", [text("bo"), text("om")], [text("boom", cache_control=None)]])
async def test_a_failed_result_of_anthropics_form_is_read(content):
    answer = await asked(MESSAGES, {"messages": [HELLO, used("t1"), results(of_use(content, is_error=True))]})
    assert "boom" in answer.read


async def test_that_a_tool_failed_is_read_where_its_result_says_nothing_else():
    """``is_error`` is for the model to know; a failure and a success without output are two things."""
    failed = await asked(MESSAGES, {"messages": [HELLO, used("t1"), results(of_use("", is_error=True))]})
    fine = await asked(MESSAGES, {"messages": [HELLO, used("t1"), results(of_use(""))]})
    assert failed.status == 400 or failed.read != fine.read


async def test_several_results_and_a_text_in_one_message_are_all_read_in_order():
    back = results(of_use("of one", "t1"), of_use("of two", "t2"), text("now go on"))
    read = (await asked(MESSAGES, {"messages": [HELLO, used("t1", "t2"), back]})).read
    assert read.index("of one") < read.index("of two") < read.index("now go on")


async def test_text_before_results_is_not_silently_put_behind_them():
    """Anthropic's API refuses it: results must come first in the content array."""
    answer = await asked(MESSAGES, {"messages": [HELLO, used("t1"), results(text("before"), of_use("after"))]})
    assert answer.status == 400 or answer.read.index("before") < answer.read.index("after")


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (CHAT, {"messages": [HELLO, called("c1"), HELLO, result("late")]}),
        (CHAT, {"messages": [HELLO, called("c1"), GO_ON]}),
        (CHAT, {"messages": [HELLO, called("c1"), result("a"), result("b")]}),
        (CHAT, {"messages": [HELLO, called("c1"), result("a", "c9")]}),
        (MESSAGES, {"messages": [HELLO, used("t1"), GO_ON]}),
        (MESSAGES, {"messages": [HELLO, used("t1", "t2"), results(of_use("a", "t1"))]}),
        (RESPONSES, {"input": [HELLO, item_call(), GO_ON]}),
        (RESPONSES, {"input": [HELLO, item_output("a")]}),
    ],
)
async def test_calls_and_results_that_do_not_match_are_refused_by_their_ids(path, change):
    answer = await asked(path, change)
    one = "t1" if path == MESSAGES and "t2" not in json.dumps(change) else "t" if path == MESSAGES else "c1"
    assert answer.refused_as("conversation", one)


async def test_an_id_may_be_used_again_in_a_later_turn():
    turn = [called("c1"), result("yes")]
    assert (await asked(CHAT, {"messages": [HELLO, *turn, *turn]})).status == 200


@pytest.mark.parametrize(
    ("path", "change"),
    [(CHAT, {"messages": [HELLO, called("c1", "c1"), result("a"), result("b")]}),
     (MESSAGES, {"messages": [HELLO, used("t1", "t1"), results(of_use("a"), of_use("b"))]})],
)  # fmt: skip
async def test_two_calls_of_one_message_with_the_same_id_are_refused_by_it(path, change):
    assert (await asked(path, change)).refused_as("malformed", "1" if path == CHAT else "t1")


@pytest.mark.parametrize("arguments", ["", "{oops", "not JSON", "[1]", "null"])
async def test_arguments_that_are_no_object_in_a_history_are_read_as_their_text(arguments):
    """They are a text in OpenAI's APIs, whose documentation says that a model "does not always generate valid JSON"."""
    messages = [HELLO, called("c1", arguments=arguments), result("bad arguments")]
    answer = await asked(CHAT, {"messages": messages, "tools": [CHAT_TOOL]})
    assert arguments in answer.read


MALFORMED = 'sure\n<tool_call>\n{"name": "look", "arguments": {oops}}\n</tool_call>'


def sent_back(path, document):
    """The answer and a result for each of its calls, as messages that a client sends."""
    if path == CHAT:
        message = document["choices"][0]["message"]
        return [message, *(result("bad", call["id"]) for call in message.get("tool_calls") or [])]
    if path == RESPONSES:
        calls = [item for item in document["output"] if item["type"] == "function_call"]
        return [*document["output"], *(item_output("bad", call["call_id"]) for call in calls)]
    calls = [block for block in document["content"] if block["type"] == "tool_use"]
    return [by_assistant(document["content"]), results(*(of_use("bad", call["id"]) for call in calls))]


@pytest.mark.parametrize("changed", [False, True], ids=["same", "changed"])
@pytest.mark.parametrize("path", OF_PATH)
async def test_a_malformed_call_of_the_models_own_can_be_sent_back_also_behind_a_changed_history(path, changed):
    """An agent that owns its context trims and summarises what stands before; the turn itself is as it came."""
    name = "input" if path == RESPONSES else "messages"
    async with endpoint(sampling(MALFORMED, "done"), turn_tokens=400) as open_to:
        asks = OF_PATH[path] | {name: [HELLO], "tools": [TOOL_OF[path]]}
        status, document = await open_to.post(path, asks)
        assert status == 200
        before = {"role": "user", "content": "a summary"} if changed else HELLO
        back = [message for message in sent_back(path, document) if message.get("content") != []]
        behind = [] if len(back) > 1 else [{"role": "user", "content": "no tool was called"}]
        status, document = await open_to.post(path, asks | {name: [before, *back, *behind]})
        assert status == 200, document


@pytest.mark.parametrize("path", OF_PATH)
async def test_a_call_that_the_limit_cuts_is_no_call_of_a_tool_without_a_name(path):
    """The real APIs say the name and what there is of the arguments; a loop looks tools up by their name."""
    limit = {CHAT: "max_tokens", MESSAGES: "max_tokens", RESPONSES: "max_output_tokens"}[path]
    answer = await asked(path, {"tools": [TOOL_OF[path]], limit: 14}, LOOK)
    assert answer.status == 200
    if path == CHAT:
        calls = [call["function"] for call in answer.document["choices"][0]["message"].get("tool_calls") or []]
    else:
        calls = [one for one in answer.document.get("content", answer.document.get("output")) if "name" in one]
    assert [call["name"] for call in calls if call["name"] != "look"] == []


@pytest.mark.parametrize("content", [None, "", [text("I look.")]])
async def test_the_ways_in_which_clients_write_one_answer_go_on_in_its_segment(content):
    meant = AssistantMessage("" if not content else "I look.", LOOK.requests)
    async with endpoint(scripted(qwen3(), meant, DONE), turn_tokens=400) as open_to:
        asks = OF_PATH[CHAT] | {"tools": [CHAT_TOOL]}
        _, document = await open_to.post(CHAT, asks)
        message = document["choices"][0]["message"] | {"content": content}
        back = [HELLO, message, result("yes", message["tool_calls"][0]["id"])]
        assert (await open_to.post(CHAT, asks | {"messages": back}))[0] == 200
        assert [len(segment.turns) for segment in open_to.model.segments()] == [2]


@pytest.mark.parametrize("sampled", ["  it \n\n", "it\n", "\tit", " "])
@pytest.mark.parametrize("path", OF_PATH)
async def test_white_space_of_an_answer_is_shown_as_it_was_sampled(path, sampled):
    """The text shown to the agent is exactly what was sampled."""
    async with endpoint(sampling(sampled), turn_tokens=400) as open_to:
        status, document = await open_to.post(path, OF_PATH[path])
        assert status == 200
    if path == CHAT:
        shown = document["choices"][0]["message"]["content"]
    elif path == MESSAGES:
        shown = "".join(block["text"] for block in document["content"])
    else:
        shown = "".join(part["text"] for part in document["output"][0]["content"])
    assert shown == sampled


@pytest.mark.parametrize("sampled", ['{"a":"x"}', '{ "a" : 1.0 }'])
async def test_a_call_that_is_sent_back_as_it_was_shown_goes_on_however_it_was_spelled(sampled):
    spelled = f'<tool_call>\n{{"name": "look", "arguments": {sampled}}}\n</tool_call>'
    async with endpoint(sampling(spelled, "done"), turn_tokens=400) as open_to:
        asks = OF_PATH[CHAT] | {"tools": [CHAT_TOOL]}
        _, document = await open_to.post(CHAT, asks)
        back = [HELLO, *sent_back(CHAT, document)]
        assert (await open_to.post(CHAT, asks | {"messages": back}))[0] == 200
        assert [len(segment.turns) for segment in open_to.model.segments()] == [2]


@pytest.mark.parametrize("change", ["answer ", " answer", "Answer", "answer\n"])
async def test_an_answer_that_the_agent_changed_by_a_letter_or_a_space_begins_a_segment(change):
    async with endpoint(scripted(qwen3(), AssistantMessage("answer"), DONE), turn_tokens=400) as open_to:
        await open_to.post(CHAT, OF_PATH[CHAT])
        back = [HELLO, by_assistant(change), GO_ON]
        assert (await open_to.post(CHAT, {"messages": back}))[0] == 200
        assert len(open_to.model.segments()) == 2
        read = "".join(qwen3().pieces(open_to.model.calls[1].context.token_ids))
        assert f"assistant\n{change}<|im_end|>" in read


async def test_a_conversation_may_go_on_in_another_dialect():
    """A router of models translates a conversation, and each turn stays what it was."""
    async with endpoint(scripted(qwen3(), AssistantMessage("answer"), DONE), turn_tokens=400) as open_to:
        await open_to.post(CHAT, OF_PATH[CHAT])
        back = [HELLO, by_assistant([text("answer")]), GO_ON]
        assert (await open_to.post(MESSAGES, OF_PATH[MESSAGES] | {"messages": back}))[0] == 200
        assert [len(segment.turns) for segment in open_to.model.segments()] == [2]


# ---- tools ----


@pytest.mark.parametrize("path", OF_PATH)
async def test_a_nested_schema_is_read_whole_with_its_letters(path):
    schema = {
        "type": "object",
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "properties": {"é": {"anyOf": [{"type": "null"}, {"enum": ['a"b', "\U0001f600"]}], "default": None}},
    }
    tool = {
        CHAT: {"type": "function", "function": {"name": "f", "parameters": schema}},
        MESSAGES: {"name": "f", "input_schema": schema},
        RESPONSES: {"type": "function", "name": "f", "parameters": schema, "strict": False},
    }[path]
    assert json.dumps(schema, ensure_ascii=False) in (await asked(path, {"tools": [tool]})).read


@pytest.mark.parametrize("length", [1, 64])
async def test_a_name_of_a_tool_as_long_as_the_api_allows_is_taken(length):
    tool = {"type": "function", "function": {"name": "f" * length}}
    assert "f" * length in (await asked(CHAT, {"tools": [tool]})).read


async def test_a_name_of_a_tool_as_long_as_anthropics_api_allows_is_taken():
    """Its pattern is ``^[a-zA-Z0-9_-]{1,128}$``, and names of servers and their tools joined come near it."""
    answer = await asked(MESSAGES, {"tools": [MESSAGES_TOOL | {"name": "mcp__" + "f" * 123}]})
    assert answer.status == 200, answer.document


@pytest.mark.parametrize("name", ["f" * 1000, "", "a b", None, 5])
async def test_a_name_that_no_tool_can_have_is_refused_by_its_field(name):
    answer = await asked(CHAT, {"tools": [{"type": "function", "function": {"name": name}}]})
    assert answer.refused_as("malformed", "tools.0.function.name")
    assert len(json.dumps(answer.document)) < 1000


@pytest.mark.parametrize("path", OF_PATH)
async def test_two_tools_of_one_name_are_refused_by_it(path):
    assert (await asked(path, {"tools": [TOOL_OF[path]] * 2})).refused_as("malformed", "tools", "look")


@pytest.mark.parametrize("tools", [None, []])
@pytest.mark.parametrize("path", OF_PATH)
async def test_no_tools_may_be_written_in_each_way(path, tools):
    assert (await asked(path, {"tools": tools})).read == (await asked(path)).read


async def test_a_tool_in_the_form_of_chat_completions_is_refused_in_responses_with_the_field():
    assert (await asked(RESPONSES, {"tools": [CHAT_TOOL]})).refused_as("malformed", "tools.0.name")


@pytest.mark.parametrize(
    ("path", "choice", "kind"),
    [
        (CHAT, "auto", None),
        (CHAT, "none", None),
        (CHAT, None, None),
        (CHAT, "required", "unsupported"),
        (CHAT, {"type": "function", "function": {"name": "look"}}, "unsupported"),
        (MESSAGES, {"type": "auto"}, None),
        (MESSAGES, {"type": "auto", "disable_parallel_tool_use": False}, None),
        (MESSAGES, {"type": "none"}, None),
        (MESSAGES, {"type": "any"}, "unsupported"),
        (MESSAGES, {"type": "tool", "name": "look"}, "unsupported"),
        (MESSAGES, {"type": "auto", "disable_parallel_tool_use": True}, "unsupported"),
        (RESPONSES, "auto", None),
        (RESPONSES, "none", None),
        (RESPONSES, "required", "unsupported"),
        (RESPONSES, {"type": "function", "name": "look"}, "unsupported"),
    ],
)
async def test_each_choice_of_a_tool_is_taken_or_refused_by_its_name(path, choice, kind):
    answer = await asked(path, {"tools": [TOOL_OF[path]], "tool_choice": choice})
    assert answer.status == 200 if kind is None else answer.refused_as(kind, "tool_choice")


@pytest.mark.parametrize("path", OF_PATH)
async def test_who_chooses_no_tool_gets_no_call(path):
    """By OpenAI's documentation "the model will not call any tool and instead generates a message"."""
    choice = {"type": "none"} if path == MESSAGES else "none"
    answer = await asked(path, {"tools": [TOOL_OF[path]], "tool_choice": choice}, LOOK)
    assert answer.status == 200
    written = json.dumps(answer.document)
    assert not any(mark in written for mark in ('"tool_calls"', '"tool_use"', '"function_call"'))


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_calls_one_at_a_time_are_refused_and_not_ignored(path):
    answer = await asked(path, {"tools": [TOOL_OF[path]], "parallel_tool_calls": False})
    assert answer.refused_as("unsupported", "parallel_tool_calls", "leave")


@pytest.mark.parametrize(
    "change",
    [
        {"functions": [CHAT_TOOL["function"]]},
        {"functions": [CHAT_TOOL["function"]], "function_call": "auto"},
        {"functions": [CHAT_TOOL["function"]], "function_call": {"name": "look"}},
    ],
)
async def test_functions_of_the_first_api_are_refused_by_name(change):
    assert (await asked(CHAT, change)).refused_as("unsupported", "functions")


async def test_a_call_in_the_first_apis_form_in_a_history_is_not_silently_lost():
    asked_for = by_assistant(None, function_call={"name": "look", "arguments": '{"a": "1"}'})
    answer = await asked(CHAT, {"messages": [HELLO, asked_for, GO_ON]})
    assert answer.status == 400 or "look" in answer.read


# ---- options ----


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"a": "b"}, "store": True, "user": "u", "service_tier": "auto"},
        {"safety_identifier": "s", "prompt_cache_key": "k", "store": False},
        {"prompt_cache_retention": "24h"},
        {"max_tokens": None, "max_completion_tokens": None, "stop": None, "n": None, "seed": None},
        {"stop": []},
        {"temperature": 0},
        {"temperature": None, "top_p": None, "logprobs": None, "top_logprobs": None, "stream": None},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"}},
        {"frequency_penalty": None, "presence_penalty": None, "logit_bias": None, "response_format": None},
        {"modalities": ["text"], "stream_options": None, "tools": None, "tool_choice": None},
        {"logprobs": True, "top_logprobs": 0},
        {"parallel_tool_calls": True, "tools": [CHAT_TOOL]},
    ],
)
async def test_options_of_openai_that_change_nothing_of_a_turn_are_taken(change):
    answer = await asked(CHAT, change)
    assert answer.status == 200, answer.document


@pytest.mark.parametrize(
    "change",
    [
        {"store": False, "metadata": {}, "truncation": "disabled", "background": False, "include": []},
        {"include": ["reasoning.encrypted_content"], "store": False},
        {"reasoning": None, "previous_response_id": None, "conversation": None, "prompt": None, "text": None},
        {"reasoning": {"effort": None, "summary": None}},
        {"text": {"format": {"type": "text"}}, "top_logprobs": 0, "temperature": 0, "top_p": 1},
        {"stream_options": {"include_obfuscation": False}},
        {"prompt_cache_retention": "24h", "prompt_cache_key": "k", "safety_identifier": "s"},
    ],
)
async def test_options_of_responses_that_change_nothing_of_a_turn_are_taken(change):
    answer = await asked(RESPONSES, change)
    assert answer.status == 200, answer.document


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"user_id": "u"}, "service_tier": "standard_only"},
        {"thinking": {"type": "disabled"}},
        {"thinking": None, "container": None, "stop_sequences": None, "tool_choice": None, "temperature": None},
        {"temperature": 1.0, "top_p": 0.9, "top_k": 40},
        {"mcp_servers": [], "context_management": None},
        {"max_tokens": 64_000},
        {"tools": [MESSAGES_TOOL | {"type": "custom", "cache_control": {"type": "ephemeral"}}]},
        {"tools": [MESSAGES_TOOL | {"type": None, "eager_input_streaming": True}]},
    ],
)
async def test_options_of_anthropic_that_change_nothing_of_a_turn_are_taken(change):
    answer = await asked(MESSAGES, change)
    assert answer.status == 200, answer.document


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
        (CHAT, {"reasoning_effort": "low"}),
        (CHAT, {"top_logprobs": 2, "logprobs": True}),
        (CHAT, {"logit_bias": {"5": -100}}),
        (CHAT, {"presence_penalty": 0.5}),
        (CHAT, {"prediction": {"type": "content", "content": "x"}}),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}),
        (RESPONSES, {"reasoning": {"effort": "low"}}),
        (RESPONSES, {"background": True}),
        (RESPONSES, {"previous_response_id": "resp_0", "instructions": "be"}),
        (RESPONSES, {"stop": ["x"]}),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (MESSAGES, {"thinking": {"type": "adaptive"}}),
        (MESSAGES, {"output_config": {"effort": "low"}}),
        (MESSAGES, {"thread": {"type": "create"}}),
        (MESSAGES, {"container": "c"}),
        (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
    ],
)
async def test_options_that_would_change_the_answer_are_refused_by_name(path, change):
    assert (await asked(path, change)).refused_as("unsupported", next(iter(change)))


@pytest.mark.parametrize(
    ("path", "change", "words"),
    [
        (CHAT, {"temperature": 2.5}, ["temperature", "2.5", "2"]),
        (CHAT, {"temperature": "0.5"}, ["temperature", "0.5", "number"]),
        (CHAT, {"top_p": -1}, ["top_p", "-1"]),
        (CHAT, {"max_tokens": "5"}, ["max_tokens", "whole number"]),
        (CHAT, {"max_completion_tokens": 0}, ["max_completion_tokens", "0"]),
        (CHAT, {"n": "2"}, ["n = ", "whole number"]),
        (CHAT, {"seed": 1.5}, ["seed", "1.5"]),
        (CHAT, {"stop": 3}, ["stop", "3"]),
        (CHAT, {"stop": ["a", None]}, ["stop"]),
        (CHAT, {"stream": "true"}, ["stream", "true or false"]),
        (CHAT, {"logprobs": 1}, ["logprobs"]),
        (CHAT, {"messages": None}, ["messages", "list"]),
        (CHAT, {"tools": {"look": {}}}, ["tools"]),
        (MESSAGES, {"temperature": 1.5}, ["temperature", "1.5"]),
        (MESSAGES, {"max_tokens": "10"}, ["max_tokens", "10"]),
        (MESSAGES, {"max_tokens": None}, ["max_tokens"]),
        (MESSAGES, {"system": 5}, ["system", "5"]),
        (RESPONSES, {"input": None}, ["input"]),
        (RESPONSES, {"input": 5}, ["input", "5"]),
        (RESPONSES, {"instructions": [HELLO]}, ["instructions"]),
        (RESPONSES, {"max_output_tokens": True}, ["max_output_tokens"]),
    ],
)
async def test_a_value_of_another_kind_is_refused_with_field_value_and_remedy(path, change, words):
    answer = await asked(path, change)
    assert answer.refused_as("malformed", *words)
    if path != MESSAGES:
        assert answer.document["error"]["param"] == next(iter(change))


async def test_a_choice_of_a_tool_that_no_api_has_is_malformed_and_not_merely_unsupported():
    assert (await asked(CHAT, {"tools": [CHAT_TOOL], "tool_choice": "maybe"})).refused_as("malformed", "tool_choice")


async def test_two_limits_that_contradict_each_other_are_refused_or_both_kept():
    """OpenAI's API refuses both at once; who sets two limits expects that neither is passed."""
    change = {"max_tokens": 2, "max_completion_tokens": 4}
    answer = await asked(CHAT, change, AssistantMessage("abcdefghij"))
    assert answer.status == 400 or answer.document["usage"]["completion_tokens"] <= 2


@pytest.mark.parametrize("stop", ["\n", ["\n"], ["zzz", "\n"]])
async def test_a_stop_string_may_stand_alone_or_in_a_list(stop):
    answer = await asked(CHAT, {"stop": stop}, AssistantMessage("one\ntwo"))
    [choice] = answer.document["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "stop")


async def test_the_bytes_of_log_probs_join_to_the_letters_that_several_tokens_make():
    """By OpenAI's documentation they are for characters of several tokens, and are null where there are none."""
    answer = await asked(CHAT, {"logprobs": True}, AssistantMessage("a\U0001f600b"))
    parts = [token["bytes"] for token in answer.document["choices"][0]["logprobs"]["content"]]
    assert None in parts or "a\U0001f600b".encode() in b"".join(map(bytes, parts))


# ---- answers ----


async def test_an_answer_that_is_a_call_alone_has_null_as_its_content():
    answer = await asked(CHAT, {"tools": [CHAT_TOOL]}, AssistantMessage("", LOOK.requests))
    [choice] = answer.document["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


async def test_an_answer_says_when_it_was_made():
    """A Unix timestamp by OpenAI's documentation; dashboards sort by it."""
    assert (await asked(CHAT)).document["created"] > 1_600_000_000
    assert (await asked(RESPONSES)).document["created_at"] > 1_600_000_000


async def test_a_response_says_again_what_was_asked():
    asks = {"tools": [RESPONSES_TOOL], "tool_choice": "none", "instructions": "be", "metadata": {"a": "b"}}
    document = (await asked(RESPONSES, asks)).document
    assert {name: document[name] for name in ("tool_choice", "instructions", "metadata")} == {
        name: asks[name] for name in ("tool_choice", "instructions", "metadata")
    }
    assert [tool["name"] for tool in document["tools"]] == ["look"]


async def test_an_item_of_a_response_that_was_cut_is_incomplete_itself():
    answer = await asked(RESPONSES, {"max_output_tokens": 2}, AssistantMessage("abcdefgh"))
    assert answer.document["status"] == "incomplete"
    assert answer.document["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in answer.document["output"]] == ["incomplete"]


async def test_a_thought_alone_is_an_answer_of_anthropics_form_without_blocks():
    answer = await asked(MESSAGES, None, AssistantMessage("", reasoning="hm"))
    assert (answer.document["content"], answer.document["stop_reason"]) == ([], "end_turn")


async def test_the_ids_of_calls_are_such_as_anthropics_api_takes_back():
    answer = await asked(MESSAGES, {"tools": [MESSAGES_TOOL]}, LOOK_TWICE)
    ids = [block["id"] for block in answer.document["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == 2
    assert all(one.replace("_", "").replace("-", "").isalnum() and one.isascii() for one in ids)


async def test_the_ids_of_calls_differ_between_choices():
    answer = await asked(CHAT, {"n": 3, "tools": [CHAT_TOOL]}, LOOK_TWICE)
    ids = [call["id"] for choice in answer.document["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 6


async def test_usage_has_the_counts_of_a_cache_that_programs_add_up():
    """Where nothing is cached the real APIs say 0, and programs that count costs read it without asking."""
    usage = (await asked(CHAT)).document["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0
    usage = (await asked(MESSAGES)).document["usage"]
    assert (usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]) == (0, 0)


# ---- streams ----


@pytest.mark.parametrize("path", OF_PATH)
async def test_a_refused_stream_is_a_status_and_a_document_and_no_stream(path):
    name = "input" if path == RESPONSES else "messages"
    answer = await asked(path, {"stream": True, name: []})
    assert answer.refused_as("conversation")
    assert isinstance(answer.document, dict)


@pytest.mark.parametrize("with_usage", [False, True])
async def test_usage_comes_in_a_last_chunk_of_no_choices_where_it_was_asked_for(with_usage):
    options = {"stream": True} | ({"stream_options": {"include_usage": True}} if with_usage else {})
    chunks = (await asked(CHAT, options)).document
    assert [bool(chunk["choices"]) for chunk in chunks] == [True] * (len(chunks) - with_usage) + [False] * with_usage
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")] == [3] * with_usage
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_the_chunks_of_calls_say_index_id_and_name_once():
    chunks = (await asked(CHAT, {"stream": True, "tools": [CHAT_TOOL]}, LOOK_TWICE)).document
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [(call["index"], call["function"]["name"]) for call in deltas if "id" in call] == [(0, "look"), (1, "look")]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "tool_calls"


async def test_the_events_of_messages_open_and_close_each_block_in_turn():
    events = (await asked(MESSAGES, {"stream": True, "tools": [MESSAGES_TOOL]}, LOOK_TWICE)).document
    kinds = [event["type"] for event in events if event["type"] not in ("content_block_delta", "ping")]
    assert kinds == [
        "message_start",
        *["content_block_start", "content_block_stop"] * 3,
        "message_delta",
        "message_stop",
    ]
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2]
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block.get("input") for block in starts] == [None, {}, {}]


async def test_the_events_of_a_response_name_their_items_as_its_end_does():
    events = (await asked(RESPONSES, {"stream": True, "tools": [RESPONSES_TOOL]}, LOOK_TWICE)).document
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert added == [item["id"] for item in done]
    assert done == events[-1]["response"]["output"]
    assert {event["item_id"] for event in events if "item_id" in event} == set(added)


async def test_a_response_that_is_cut_ends_its_stream_as_incomplete():
    events = (await asked(RESPONSES, {"stream": True, "max_output_tokens": 2}, AssistantMessage("abcdefgh"))).document
    assert events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("path", OF_PATH)
async def test_the_lines_of_a_stream_are_such_as_the_dialects_clients_read(path):
    received, _ = await asked_raw(request(path, OF_PATH[path] | {"stream": True}, connection="close"))
    assert b"text/event-stream" in received
    assert (b"data: [DONE]\n\n" in received) == (path == CHAT)
    assert (b"event: " in received) == (path != CHAT)


# ---- refusals of each dialect ----


@pytest.mark.parametrize(
    ("status", "kind", "made"),
    [
        (400, "invalid_request_error", {"body": b"{"}),
        (401, "authentication_error", {"key": "no"}),
        (413, "request_too_large", {"content-length": str(10**8)}),
        (405, "invalid_request_error", {"method": "GET"}),
    ],
)
async def test_a_refusal_of_anthropics_form_has_the_type_of_its_status(status, kind, made):
    body = made.get("body", OF_PATH[MESSAGES])
    fields = {name: value for name, value in made.items() if name != "body"}
    async with endpoint(scripted(qwen3())) as open_to:
        answer = await open_to.sent(request(MESSAGES, body, **fields))
    assert (answer[0], answer[1]["type"], answer[1]["error"]["type"]) == (status, "error", kind)


@pytest.mark.parametrize("path", OF_PATH)
async def test_too_many_at_once_is_refused_with_when_to_come_again(path):
    policy = scripted(qwen3())

    async def waits(wanted):
        await asyncio.Event().wait()

    policy.generate = waits
    async with endpoint(policy, parallel=1) as open_to:
        _, held = await open_to.connected()
        held.write(request(CHAT, OF_PATH[CHAT]))
        await asyncio.sleep(0.1)
        reader, writer = await open_to.connected()
        writer.write(request(path, OF_PATH[path]))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert (b" 429 " in head, b"retry-after: " in head) == (True, True)
        document = json.loads(await reader.read(2**16))
        assert document["error"]["type"] in ("rate_limit_error", "requests", "rate_limit_exceeded")
        held.close()
        writer.close()


async def test_a_field_that_is_refused_does_not_print_a_whole_document():
    answer = await asked(CHAT, {"response_format": {"type": "json_schema", "json_schema": {"x": "y" * 50_000}}})
    assert answer.refused_as("unsupported", "response_format")
    assert len(json.dumps(answer.document)) < 1000


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_no_room_is_refused_with_the_code_by_which_agents_know_that_they_must_compact(path):
    name = "input" if path == RESPONSES else "messages"
    async with endpoint(scripted(qwen3()), context_tokens=30) as open_to:
        status, document = await open_to.post(path, {name: [{"role": "user", "content": "x " * 99}]})
    assert (status, document["error"]["code"]) == (400, "context_length_exceeded")


async def test_no_room_is_refused_in_anthropics_words_by_which_agents_know_that_they_must_compact():
    """Its form has no code: "prompt is too long: N tokens > M maximum" is what there is to go by."""
    asks = {"max_tokens": 9, "messages": [{"role": "user", "content": "x " * 99}]}
    async with endpoint(scripted(qwen3()), context_tokens=30) as open_to:
        status, document = await open_to.post(MESSAGES, asks)
    assert (status, document["error"]["type"]) == (400, "invalid_request_error")
    assert "prompt is too long" in document["error"]["message"]


@pytest.mark.parametrize("path", OF_PATH)
async def test_calls_beyond_the_budget_are_refused_with_a_status_that_clients_do_not_try_again(path):
    async with endpoint(scripted(qwen3()), calls=1) as open_to:
        assert (await open_to.post(path, OF_PATH[path]))[0] == 200
        status, document = await open_to.post(path, OF_PATH[path])
    assert (status, document["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize("part", [{"type": "text", "text": 5}, {"text": "x"}, {"type": "text", "text": None}])
async def test_a_part_of_another_form_is_refused_by_its_place(part):
    answer = await asked(CHAT, {"messages": [{"role": "user", "content": [text("a"), part]}]})
    assert answer.status == 400, answer.document
    assert "messages.0.content.1" in answer.document["error"]["message"]


@pytest.mark.parametrize("options", [5, "include_usage", {"include_usage": "yes"}])
async def test_options_of_a_stream_that_are_none_are_refused(options):
    assert (await asked(CHAT, {"stream": True, "stream_options": options})).refused_as("malformed", "stream_options")


@pytest.mark.parametrize("block", [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}, of_use("x")])
async def test_a_block_in_a_message_of_the_wrong_role_is_refused_by_its_kind(block):
    role = "user" if block["type"] == "tool_use" else "assistant"
    answer = await asked(MESSAGES, {"messages": [HELLO, {"role": role, "content": [block]}, GO_ON]})
    assert answer.refused_as("conversation", "messages.1.content.0", block["type"])


# ---- HTTP ----
