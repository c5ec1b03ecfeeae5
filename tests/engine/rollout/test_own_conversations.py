"""What own conversations may look like: all of it is learned as it is given, or refused with line, field and remedy."""

import json

import pytest
from transformers import AutoTokenizer

from engine.rollout.chat_documents import DocumentRefused, as_line, documents_in, supervised_sequences
from engine.rollout.renderers.chat import chat_renderer
from engine.spec.message import DEEPEST_ARGUMENTS
from tests.engine.rollout.renderers.model_folders import write_folder

USER = {"role": "user", "content": "a"}
PHRASE = {"role": "assistant", "content": "b"}
RESULT = {"role": "tool", "content": "4"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.fixture(scope="module")
def speak(folder):
    return chat_renderer(folder)


def calling(*calls):
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def call(arguments=None, **more):
    return {"type": "function", "function": {"name": "python", "arguments": arguments or {}}} | more


def read(content, line=None):
    (document,) = documents_in([line or json.dumps(content)])
    return document


def refused(content, line=None):
    with pytest.raises(DocumentRefused) as error:
        read(content, line)
    assert error.value.problem.remedy
    return error.value.problem


def nested(depth):
    """So many objects inside one another."""
    value = {}
    for _ in range(depth - 1):
        value = {"in": value}
    return value


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("depth", [DEEPEST_ARGUMENTS, DEEPEST_ARGUMENTS + 1, 200, 900])
def test_arguments_are_refused_beyond_the_depth_that_the_endpoint_takes(speak, depth, as_text):
    arguments = nested(depth)
    written = call(json.dumps(arguments) if as_text else arguments)
    content = {"messages": [USER, calling(written), RESULT, PHRASE], "tools": [{"function": {"name": "python"}}]}
    if depth <= DEEPEST_ARGUMENTS:
        assert supervised_sequences(read(content), speak)
        return
    problem = refused(content)
    assert problem.field == "line 1: messages[1].tool_calls[0].function.arguments"
    assert problem.message == "more than 64 objects and lists inside one another"


TOOLS = [
    {"type": "function", "function": {"name": "f"}},
    {"type": "function", "function": {"name": "g", "description": "", "parameters": {"type": "object"}}},
    {"function": {"parameters": {"type": "object", "properties": {"b": {}, "a": {}}}, "name": "h"}, "type": "function"},
    {"function": {"strict": False, "description": "é <b> 'q'", "name": "i"}},
    {"type": "function", "function": {"name": "j", "description": None, "parameters": None, "strict": None}},
]


def test_tools_are_rendered_as_they_are_given_as_transformers_does(folder, speak):
    reference = AutoTokenizer.from_pretrained(folder)
    for tools in (*([tool] for tool in TOOLS), TOOLS):
        document = read({"messages": [USER, PHRASE], "tools": tools})
        expected = reference.apply_chat_template([USER], tools=tools, add_generation_prompt=True, return_dict=False)
        (sequence,) = supervised_sequences(document, speak)
        assert sequence.token_ids[: len(expected)] == expected
        assert document == read(None, as_line(document))
        assert json.loads(as_line(document))["tools"] == tools


def test_the_name_of_who_speaks_is_given_to_the_template_and_kept(folder, tmp_path):
    (tmp_path / "named").mkdir()
    for file in folder.iterdir():
        (tmp_path / "named" / file.name).write_bytes(file.read_bytes())
    template = tmp_path / "named" / "chat_template.jinja"
    head = "'<|im_start|>' + message.role + (' ' + message.name if message.name else '') + '\\n'"
    template.write_text(
        "{% for message in messages %}{{ " + head + " + message.content + '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    bob = USER | {"name": "Bob"}
    document = read({"messages": [USER | {"role": "system", "name": "rules"}, bob, PHRASE, bob, PHRASE]})
    (sequence,) = supervised_sequences(document, chat_renderer(tmp_path / "named"))
    expected = AutoTokenizer.from_pretrained(tmp_path / "named").apply_chat_template(
        json.loads(as_line(document))["messages"], return_dict=False
    )
    assert expected[: len(sequence.token_ids)] == sequence.token_ids
    assert chat_renderer(tmp_path / "named").text(sequence.token_ids).count("user Bob") == 2
    assert refused({"messages": [USER, PHRASE | {"name": "Eve"}]}).field == "line 1: messages[1].name"


@pytest.mark.parametrize(
    "line",
    [
        '{"messages": [], "messages": []}',
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "x", "content": "y"}]}',
    ],
)
def test_a_key_that_stands_twice_is_refused(line):
    assert "stands twice in one object" in refused(None, line).message


def test_a_key_that_stands_twice_in_arguments_is_refused():
    problem = refused({"messages": [USER, calling(call('{"a": 1, "a": 2}')), RESULT]})
    assert problem.field == "line 1: messages[1].tool_calls[0].function.arguments"
    assert problem.message == "it is no JSON: the key 'a' stands twice in one object"


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([USER, calling(call(), call()), RESULT, PHRASE], "2 calls have 1 results behind them"),
        ([USER, calling(call(), call()), RESULT], "2 calls have 1 results behind them"),
        ([USER, calling(call()), USER, PHRASE], "1 calls have 0 results behind them"),
    ],
)
def test_calls_that_nobody_answered_are_refused(messages, problem):
    found = refused({"messages": messages})
    assert (found.field, found.message) == ("line 1: messages[1].tool_calls", problem)


def test_calls_of_the_last_turn_have_no_results_yet(speak):
    document = read({"messages": [USER, calling(call(), call())], "tools": [{"function": {"name": "python"}}]})
    assert supervised_sequences(document, speak)


@pytest.mark.parametrize("text", ["x\ud800y", "\udc00", "a\0b"])
@pytest.mark.parametrize("place", ["content", "reasoning_content", "name", "arguments", "schema", "description"])
def test_what_no_text_may_hold_is_refused_wherever_it_stands(text, place):
    tool = {"function": {"name": "f", "description": text if place == "description" else ""}}
    if place == "schema":
        tool["function"]["parameters"] = {"type": "object", "properties": {text: {}}}
    turn = PHRASE | ({place: text} if place in ("content", "reasoning_content") else {})
    speech = USER | ({"name": text} if place == "name" else {})
    given = calling(call({"a": [text]} if place == "arguments" else {}))
    problem = refused({"messages": [speech, given, RESULT, turn], "tools": [tool]})
    assert "half a surrogate pair" in problem.message or "U+0000" in problem.message


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"function": {"name": "f"}, "extra": 1}, "tools[0].extra"),
        ({"function": {"name": "f", "params": {}}}, "tools[0].function.params"),
        ({"function": {"name": "f", "strict": True}}, "tools[0].function.strict"),
        ({"type": "web_search", "function": {"name": "f"}}, "tools[0].type"),
    ],
)
def test_unknown_fields_of_tools_are_refused(tool, field):
    assert refused({"messages": [USER, PHRASE], "tools": [tool]}).field == f"line 1: {field}"


@pytest.mark.parametrize(
    ("made", "field"),
    [
        (call(index=0), "index"),
        (call(type="custom"), "type"),
        ({"function": {"name": "f", "arguments": {}, "output": ""}}, "function.output"),
    ],
)
def test_unknown_fields_of_calls_are_refused(made, field):
    problem = refused({"messages": [USER, calling(made), RESULT]})
    assert problem.field == f"line 1: messages[1].tool_calls[0].{field}"


def test_a_turn_without_a_thought_is_learned_without_the_empty_one_that_the_template_writes_last(folder, speak):
    """As docs/guide/own-data.md has it."""
    (sequence,) = supervised_sequences(read({"messages": [USER, PHRASE]}), speak)
    assert speak.text(sequence.token_ids).endswith("<|im_start|>assistant\nb<|im_end|>")
    whole = AutoTokenizer.from_pretrained(folder).apply_chat_template([USER, PHRASE], tokenize=False)
    assert whole.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nb<|im_end|>\n")
    silent = chat_renderer(folder, reasoning="off")
    (sequence,) = supervised_sequences(read({"messages": [USER, PHRASE]}), silent)
    assert whole.startswith(silent.text(sequence.token_ids))


@pytest.mark.parametrize("text", ["[", json.dumps([{"messages": [USER, PHRASE]}]), "[\n {\n"])
def test_a_file_that_is_one_array_is_refused_with_how_to_make_lines_of_it(text):
    problem = refused(None, text.splitlines()[0])
    assert problem.message == "this is no JSON object but an array, as of all documents together"
    assert problem.remedy == "write one document a line: jq -c '.[]' FILE > FILE.jsonl makes lines of an array"


def test_a_byte_order_mark_is_no_part_of_the_first_document():
    line = json.dumps({"messages": [USER, PHRASE]})
    assert read(None, "\ufeff" + line) == read(None, line)
