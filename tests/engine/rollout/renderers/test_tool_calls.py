import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rollout.renderers.tool_calls import FORMATS, Reading, fenced
from engine.spec.message import DEEPEST_ARGUMENTS, AssistantMessage, ToolRequest, ToolSchema

TOOLS = [ToolSchema.of_text("python", "code"), ToolSchema("add"), ToolSchema.of_text("c++ (g)", "source")]
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
REQUESTS = st.lists(
    st.builds(ToolRequest, TEXT.filter(bool), st.dictionaries(TEXT, VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)  # fmt: skip
PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<|python_tag|>", '{"name": "add", ', '"arguments": {}}', '"parameters": {}}',
     "```python\n", "\n```",
     "```", "{", "}", "[" * 5000, '"', ";", "\n", "NaN", "1e999", "9" * 5000, '"\\ud800"', "python"]
)  # fmt: skip


def read(name, text, tools=TOOLS):
    return FORMATS[name].read(Reading(text, ""), tools)


def as_json(request, key):
    return json.dumps({"name": request.name, key: request.arguments}, ensure_ascii=False)


@pytest.mark.parametrize("name", FORMATS)
@given(text=st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join), tools=st.sampled_from([[], TOOLS]))
def test_no_text_raises_and_each_is_calls_an_answer_or_malformed_with_a_reason(name, text, tools):
    message = read(name, text, tools)
    unreadable = [request for request in message.requests if request.malformed is not None]
    assert message.malformed is None
    assert not unreadable or (len(message.requests) == 1 and unreadable[0].malformed.reason and not message.content)
    assert json.dumps([dict(request.arguments) for request in message.requests], allow_nan=False).encode()


@given(REQUESTS, TEXT.filter(lambda text: "<tool_call>" not in text and "</tool_call>" not in text))
def test_hermes_reads_every_call_and_what_is_reported_before(requests, phrase):
    if any("tool_call>" in str(request) for request in requests):
        return
    calls = "\n".join(f"<tool_call>\n{as_json(request, 'arguments')}\n</tool_call>" for request in requests)
    assert read("hermes", phrase + calls) == AssistantMessage(phrase.strip(), tuple(requests))


@pytest.mark.parametrize("tag", ["", "<|python_tag|>"])
@given(requests=REQUESTS, between=st.sampled_from(["\n", ";", "; ", " "]))
def test_llama_reads_calls_with_and_without_the_tag(tag, requests, between):
    if any("<|python_tag|>" in str(request) for request in requests):
        return
    calls = between.join(as_json(request, "parameters") for request in requests)
    assert read("llama", tag + calls) == AssistantMessage("", tuple(requests))


@given(st.lists(TEXT.filter(lambda text: "```" not in text and "\r" not in text), min_size=1, max_size=3))
def test_a_code_fence_is_a_call_of_the_tool_that_it_names(codes):
    requests = tuple(ToolRequest("python", {"code": code}) for code in codes)
    assert read("code-fence", fenced("Look:", requests)) == AssistantMessage("Look:", requests)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", ""),
        ("hermes", '{"name": "add", "arguments": {}}'),
        ("llama", "{1, 2}"),
        ("llama", 'the call {"name": "add", "parameters": {}} is what I would write'),
        ("code-fence", "```javascript\nx\n```"),
        ("code-fence", "see ```python inline```"),
        ("code-fence", "```python"),
    ],
)
def test_what_begins_no_call_is_an_answer(name, text):
    assert read(name, text) == AssistantMessage(text.strip())


def test_without_tools_llamas_json_is_an_answer():
    text = '{"name": "add", "parameters": {}}'
    assert read("llama", text, []) == AssistantMessage(text)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("hermes", '<tool_call>{"name": "add", "arguments": {}, "x": 1}</tool_call>', "a key besides"),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{}"}</tool_call>', "no JSON object"),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "names no tool"),
        ("hermes", '<tool_call>{"name": "add", "name": "b", "arguments": {}}</tool_call>', "stands twice"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "no value"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>', "beyond all numbers"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>', "surrogate"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"\\ud800": 1}}</tool_call>', "surrogate"),
        (
            "hermes",
            '<tool_call>{"name": "add", "arguments": {"a": ' + "[" * 99 + "]" * 99 + "}}</tool_call>",
            "inside one another",
        ),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": "\\u0000"}}</tool_call>', "U+0000"),
        ("hermes", '<tool_call>{"name": "\\u0000", "arguments": {}}</tool_call>', "U+0000"),
        ("hermes", "<tool_call>" + "[" * 10**5 + "</tool_call>", "no JSON"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {}}<tool_call></tool_call>', "not closed"),
        ("llama", "<|python_tag|>print(1)", "no JSON"),
        ("llama", "<|python_tag|>", "empty"),
        ("llama", '{"name": "add", "parameters": {}} and more', "no JSON"),
        ("llama", '{"name": "add", "arguments": {}}', "parameters is no JSON object"),
        ("code-fence", "```python\nprint(1)", "not closed"),
        ("code-fence", "```python\nprint(1)\n```\nThe answer is 1", "behind a call"),
        ("code-fence", "```add\n1\n```", "more than one text"),
    ],
)
def test_a_malformed_call_says_why_and_can_be_answered(name, text, reason):
    message = read(name, text)
    [request] = message.requests
    assert request.malformed is not None
    assert reason in request.malformed.reason
    assert message.calls_tool
    assert request.malformed.text == text


def test_a_malformed_call_names_the_tool_as_far_as_it_can_be_told():
    assert read("hermes", '<tool_call>{"name": "add", "arguments": 3}</tool_call>').requests[0].name == "add"


def test_one_bad_call_among_several_spoils_the_turn():
    good = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    message = read("hermes", good + "<tool_call>{}</tool_call>" + good)
    [request] = message.requests
    assert "names no tool" in request.malformed.reason


def test_nesting_up_to_the_bound_is_read():
    value = []
    for _ in range(DEEPEST_ARGUMENTS - 2):
        value = [value]
    text = json.dumps({"name": "add", "arguments": {"a": value}})
    assert read("hermes", f"<tool_call>{text}</tool_call>").requests == (ToolRequest("add", {"a": value}, id="call-1"),)
