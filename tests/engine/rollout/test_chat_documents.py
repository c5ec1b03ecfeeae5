import json
from dataclasses import replace
from random import Random

import pytest
from transformers import AutoTokenizer

from engine.models.tokenizer import tokenizer_for
from engine.rollout.chat_documents import (
    ChatDocument,
    DocumentRefused,
    as_line,
    documents_in,
    supervised_sequences,
)
from engine.rollout.renderers.characters import CharacterRenderer
from engine.rollout.renderers.chat import ChatRenderer, chat_renderer
from engine.spec.message import AssistantMessage, Malformed, Message, ToolRequest, ToolSchema
from tests.engine.rollout.renderers.model_folders import write_folder

PYTHON = ToolSchema.of_text("python", "code", "Runs it.")
CALL = AssistantMessage.calling("python", {"code": "print('🐎')"})
DOCUMENT = ChatDocument(
    (
        Message("system", "Be brief."), Message("user", "2+2?"), CALL,
        Message("tool", "4", "python"), AssistantMessage("4"),
    ),
    (PYTHON,),
    1,
)  # fmt: skip
THOUGHTS = ChatDocument(
    (
        Message("user", "2+2?"), AssistantMessage("4", reasoning="two and two"),
        Message("user", "3+3?"), AssistantMessage("6", reasoning="three and three"),
    ),
    line=1,
)  # fmt: skip


@pytest.fixture(scope="module", params=["qwen2.5", "qwen3", "llama3"])
def speak(request, tmp_path_factory) -> ChatRenderer:
    return chat_renderer(write_folder(tmp_path_factory.mktemp("model"), request.param))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory) -> ChatRenderer:
    return chat_renderer(write_folder(tmp_path_factory.mktemp("model"), "qwen3"))


def trained_text(speak, sequence) -> str:
    return speak.text([token for token, trained in zip(sequence.token_ids, sequence.trained, strict=True) if trained])


@pytest.mark.parametrize("document", [DOCUMENT, THOUGHTS])
def test_a_document_that_is_written_is_read_as_it_was(document):
    (read,) = documents_in([as_line(document)])
    assert read == document


def test_arguments_may_be_an_object_or_its_text_and_blank_lines_count_but_say_nothing():
    message = json.loads(as_line(DOCUMENT))
    call = message["messages"][2]["tool_calls"][0]["function"]
    call["arguments"] = json.dumps(call["arguments"])
    message["messages"][2]["content"] = None
    (read,) = documents_in(["", "  \n", json.dumps(message)])
    assert (read.conversation, read.line) == (DOCUMENT.conversation, 3)


def test_what_an_assistant_wrote_is_trained_and_nothing_that_it_read(speak):
    (sequence,) = supervised_sequences(DOCUMENT, speak)
    turns = [speak.text(speak.write(turn, [PYTHON])) for turn in (CALL, AssistantMessage("4"))]
    assert trained_text(speak, sequence) == "".join(turns)
    assert len(sequence.token_ids) == len(sequence.trained)
    (last,) = supervised_sequences(DOCUMENT, speak, trained="last")
    assert trained_text(speak, last) == turns[1]
    assert last.token_ids == sequence.token_ids


def test_where_the_template_rewrites_history_another_sequence_begins_and_each_turn_is_trained_once(qwen3):
    first, second = supervised_sequences(THOUGHTS, qwen3)
    assert trained_text(qwen3, first) == "<think>\ntwo and two\n</think>\n\n4<|im_end|>"
    assert trained_text(qwen3, second) == "<think>\nthree and three\n</think>\n\n6<|im_end|>"
    assert "two and two" not in qwen3.text(second.token_ids)
    (only,) = supervised_sequences(THOUGHTS, qwen3, trained="last")
    assert only == second


def test_every_turn_of_random_documents_is_trained_exactly_once(qwen3):
    rng = Random(4)
    for _ in range(50):
        conversation: list[Message | AssistantMessage] = [Message("user", "begin")]
        for number in range(rng.randrange(1, 5)):
            reasoning = rng.choice(["", f"thought {number}"])
            if rng.random() < 0.5:
                requests = tuple(ToolRequest("python", {"code": f"{number}"}) for _ in range(rng.randrange(1, 3)))
                conversation.append(AssistantMessage(f"turn {number}", requests, reasoning=reasoning))
                conversation += [Message("tool", "done", "python") for _ in requests]
            else:
                conversation += [AssistantMessage(f"turn {number}", reasoning=reasoning), Message("user", "on")]
        turns = [message for message in conversation if isinstance(message, AssistantMessage)]
        sequences = supervised_sequences(ChatDocument(tuple(conversation), (PYTHON,)), qwen3)
        expected = "".join(qwen3.text(qwen3.write(turn, [PYTHON])) for turn in turns)
        assert "".join(trained_text(qwen3, sequence) for sequence in sequences) == expected


USER = {"role": "user", "content": "a"}
PHRASE = {"role": "assistant", "content": "b"}


def calling(**call):
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ([], "line 2"),
        ({"messages": [USER, PHRASE], "extra": 1}, "line 2: extra"),
        ({}, "line 2: messages"),
        ({"messages": []}, "line 2: messages"),
        ({"messages": [PHRASE]}, "line 2: messages"),
        ({"messages": [USER]}, "line 2: messages"),
        ({"messages": [USER, "x"]}, "line 2: messages[1]"),
        ({"messages": [USER, PHRASE, PHRASE]}, "line 2: messages[2]"),
        ({"messages": [USER, {"role": "robot", "content": ""}]}, "line 2: messages[1].role"),
        ({"messages": [USER, {"role": "assistant"}]}, "line 2: messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, PHRASE]}, "line 2: messages[0].content"),
        ({"messages": [{**USER, "weight": 1}, PHRASE]}, "line 2: messages[0].weight"),
        ({"messages": [USER, PHRASE, {"role": "tool", "content": "x"}]}, "line 2: messages[2].role"),
        ({"messages": [USER, {"role": "tool", "content": "x"}, PHRASE]}, "line 2: messages[1].role"),
        ({"messages": [USER, calling(name="f")]}, "line 2: messages[1].tool_calls[0].function"),
        ({"messages": [USER, calling(function={"arguments": {}})]}, "line 2: messages[1].tool_calls[0].function.name"),
        (
            {"messages": [USER, calling(function={"name": "f", "arguments": "{"})]},
            "line 2: messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [USER, calling(function={"name": "f", "arguments": "3"})]},
            "line 2: messages[1].tool_calls[0].function.arguments",
        ),
        (
            {
                "messages": [
                    USER,
                    calling(id="1", function={"name": "f", "arguments": {}}),
                    {"role": "tool", "content": "x", "tool_call_id": "2"},
                ]
            },
            "line 2: messages[2].tool_call_id",
        ),
        ({"messages": [USER, PHRASE], "tools": {"a": 1}}, "line 2: tools"),
        ({"messages": [USER, PHRASE], "tools": ["f"]}, "line 2: tools[0]"),
        ({"messages": [USER, PHRASE], "tools": [{"function": {"name": None}}]}, "line 2: tools[0].function.name"),
    ],
)  # fmt: skip
def test_a_bad_document_is_refused_with_line_field_and_remedy(content, field):
    with pytest.raises(DocumentRefused) as refused:
        list(documents_in([as_line(DOCUMENT), json.dumps(content)]))
    assert refused.value.problem.field == field
    assert refused.value.problem.message
    assert refused.value.problem.remedy


@pytest.mark.parametrize("line", ["{", "[" * 10**5, "nothing"])
def test_a_line_that_is_no_json_is_refused(line):
    with pytest.raises(DocumentRefused, match=r"line 1 = .*no JSON.*; write one document"):
        list(documents_in([line]))


def test_a_document_that_the_model_cannot_write_is_refused_with_its_line(tmp_path):
    llama = chat_renderer(write_folder(tmp_path, "llama3"))
    twice = AssistantMessage(requests=(*CALL.requests, replace(*CALL.requests, id="again")))
    document = ChatDocument((Message("user", "a"), twice), (PYTHON,), line=7)
    with pytest.raises(DocumentRefused, match=r"line 7: messages\[1\] = .*single tool-calls.*; leave the document out"):
        supervised_sequences(document, llama)
    with pytest.raises(DocumentRefused, match="no thoughts"):
        supervised_sequences(THOUGHTS, llama)


def test_a_malformed_turn_is_no_document():
    with pytest.raises(ValueError, match="malformed"):
        as_line(ChatDocument((Message("user", "a"), AssistantMessage(malformed=Malformed("x", "y")))))


def tried(*failed: int, codes: tuple[str, ...] = ("1/0", "1/1")) -> ChatDocument:
    """Calls, each answered, then an answer; those at the places ``failed`` among the messages have failed."""
    messages: list[Message | AssistantMessage] = [Message("user", "What is 1/1?")]
    for code in codes:
        messages += [AssistantMessage.calling("python", {"code": code}), Message("tool", "output", "python")]
    return ChatDocument((*messages, AssistantMessage("1")), (PYTHON,), 1, frozenset(failed))


def test_a_turn_whose_call_failed_is_read_and_not_trained(speak):
    document = tried(2)
    assert list(documents_in([as_line(document)])) == [document]
    (masked,) = supervised_sequences(document, speak, mask_errors=True)
    (whole,) = supervised_sequences(document, speak)
    assert masked.token_ids == whole.token_ids
    kept = [AssistantMessage.calling("python", {"code": "1/1"}), AssistantMessage("1")]
    assert trained_text(speak, masked) == "".join(speak.text(speak.write(turn, [PYTHON])) for turn in kept)


def test_a_turn_that_repeats_another_with_the_same_output_is_not_trained(speak):
    document = tried(codes=("1/1", "1/1"))
    (masked,) = supervised_sequences(document, speak, mask_irrelevant=True)
    kept = [AssistantMessage.calling("python", {"code": "1/1"}), AssistantMessage("1")]
    assert trained_text(speak, masked) == "".join(speak.text(speak.write(turn, [PYTHON])) for turn in kept)


@pytest.mark.parametrize(
    ("message", "reported"),
    [
        (
            {"role": "tool", "content": "x", "is_error": "yes"},
            r"messages\[2\].is_error = 'yes': this is no truth value",
        ),
        ({"role": "user", "content": "x", "is_error": True}, r"messages\[2\].is_error = True: this is not understood"),
    ],
)
def test_only_a_tool_says_that_its_call_failed_and_by_a_truth_value(message, reported):
    call = {"type": "function", "function": {"name": "python", "arguments": {}}}
    with pytest.raises(DocumentRefused, match=reported):
        list(documents_in([json.dumps({"messages": [USER, calling(**call), message]})]))


def test_the_form_of_sharegpt_is_refused_with_how_to_write_it():
    with pytest.raises(DocumentRefused, match="this is the form of ShareGPT; .*human -> user, gpt -> assistant"):
        list(documents_in([json.dumps({"conversations": [{"from": "human", "value": "Hi"}]})]))


SPELLED_CALL = '<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>'
SPELLED_THOUGHT = "<think>\nhm\n</think>\n\n"


def document_of(*contents: str, tools=(PYTHON,), replied="user", **entries) -> ChatDocument:
    """An assistant says the contents, to a user and to what ``replied`` says behind each but the last."""
    messages = [{"role": "user", "content": "a"}]
    for content in contents:
        messages += [{"role": "assistant", "content": content, **entries}, {"role": replied, "content": "b"}]
    functions = [{"type": "function", "function": {"name": tool.name, "description": tool.description,
                                                   "parameters": dict(tool.parameters)}} for tool in tools]  # fmt: skip
    (document,) = documents_in([json.dumps({"messages": messages[:-1], "tools": functions})])
    return document


def speaking(tmp_path, name: str, **choices) -> ChatRenderer:
    return chat_renderer(write_folder(tmp_path, name), **choices)


def test_a_thought_that_stands_in_the_content_is_learned_with_the_marks_that_transformers_gives_it(tmp_path):
    speak = speaking(tmp_path, "qwen3")
    answers = [f"{SPELLED_THOUGHT}Hello!", "<think>so</think>There."]
    sequences = supervised_sequences(document_of(*answers, tools=()), speak)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    for sequence, turns in zip(sequences, (1, 2), strict=True):
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answers[0]},
                {"role": "user", "content": "b"}, {"role": "assistant", "content": answers[1]}]  # fmt: skip
        whole = reference.apply_chat_template(talk[: 2 * turns], return_dict=False)
        assert sequence.token_ids == whole[: len(sequence.token_ids)]
        assert speak.tokenizer.marks["<think>"] in sequence.token_ids
    assert [trained_text(speak, sequence).startswith("<think>") for sequence in sequences] == [True, True]


@pytest.mark.parametrize("thought", ["", SPELLED_THOUGHT])
def test_a_call_that_stands_in_the_content_is_learned_as_the_call_that_it_is(qwen3, thought):
    spelled = document_of(f"{thought}I try. {SPELLED_CALL}", "1", replied="tool")
    call = AssistantMessage("I try.", AssistantMessage.calling("python", {"code": "print(1)"}).requests,
                            reasoning="hm" if thought else "")  # fmt: skip
    conversation = (Message("user", "a"), call, Message("tool", "b"), AssistantMessage("1"))
    assert supervised_sequences(spelled, qwen3) == supervised_sequences(ChatDocument(conversation, (PYTHON,)), qwen3)


@pytest.mark.parametrize(
    ("name", "form", "content"),
    [
        ("llama3", "auto", '<|python_tag|>{"name": "python", "parameters": {"code": "1"}}'),
        ("llama3", "auto", '{"name": "python", "parameters": {"code": "1"}}'),
        ("llama3", "code-fence", "```python\n1\n```"),
        ("qwen2.5", "hermes", '<tool_call>{"name": "python", "arguments": {"code": "1"}}</tool_call>'),
    ],
)
def test_each_form_of_calls_may_stand_in_the_content(tmp_path, name, form, content):
    speak = speaking(tmp_path, name, tool_calls=form)
    call = AssistantMessage.calling("python", {"code": "1"})
    conversation = (Message("user", "a"), call, Message("tool", "b"), AssistantMessage("1"))
    spelled = document_of(content, "1", replied="tool")
    assert supervised_sequences(spelled, speak) == supervised_sequences(ChatDocument(conversation, (PYTHON,)), speak)


@pytest.mark.parametrize(
    ("name", "choices", "content", "thought"),
    [
        ("deepseekv3", {"tool_calls": "code-fence"}, "hm\n</think>\n\nHello", "hm"),
        ("qwen3", {"reasoning": "off"}, "<think>\n\n</think>\n\nHello", ""),
    ],
)
def test_what_a_template_begins_of_a_thought_need_not_stand_in_the_content(tmp_path, name, choices, content, thought):
    speak = speaking(tmp_path, name, **choices)
    assert speak.split(AssistantMessage(content), ()) == AssistantMessage("Hello", reasoning=thought)


@pytest.mark.parametrize(
    ("content", "choices", "reason", "remedy"),
    [
        ("Hi <think>hm</think>", {}, "it spells <think>.*no thought is read there", "into reasoning_content"),
        ("<think>hm", {}, "it spells <think>", "into reasoning_content"),
        ("hm</think>Hi", {}, "it spells </think>", "into reasoning_content"),
        ("<think>a<think>b</think>Hi", {}, "stands within a thought", "into reasoning_content"),
        ("<think>a</think>b</think>Hi", {}, "it spells </think>", "into reasoning_content"),
        (f"{SPELLED_THOUGHT}Hi", {"reasoning": "off"}, "turns hold none", "leave the thought out"),
        ("a </tool_call>", {}, "cannot be read: a call is closed that was not opened", "into tool_calls"),
        ("<tool_call>{}</tool_call>", {}, "cannot be read: the call names no tool", "into tool_calls"),
        (f"{SPELLED_CALL} Done.", {}, "there is text behind a call", "into tool_calls"),
        (SPELLED_CALL.replace("python", "add"), {}, "a call of add, which tools does not declare", "declare the tool"),
        (SPELLED_CALL, {"tool_calls": "code-fence"}, "it spells <tool_call>.*no call is read", "into tool_calls"),
    ],
)
def test_what_only_spells_a_mark_of_thoughts_or_calls_is_refused_by_field(tmp_path, content, choices, reason, remedy):
    speak = speaking(tmp_path, "qwen3", **choices)
    with pytest.raises(DocumentRefused, match=rf"line 1: messages\[1\].content = .*{reason}.*{remedy}"):
        supervised_sequences(document_of(content), speak)


def test_calls_without_declared_tools_and_beside_others_are_refused(qwen3):
    with pytest.raises(DocumentRefused, match=r"messages\[1\].content = .*tools declares nothing"):
        supervised_sequences(document_of(SPELLED_CALL, tools=()), qwen3)
    call = {"type": "function", "function": {"name": "python", "arguments": {"code": "1"}}}
    with pytest.raises(DocumentRefused, match=r"messages\[1\].content = .*it spells <tool_call>"):
        supervised_sequences(document_of(SPELLED_CALL, tool_calls=[call]), qwen3)
    with pytest.raises(DocumentRefused, match=r"messages\[1\].content = .*beside reasoning_content; give one"):
        supervised_sequences(document_of(f"{SPELLED_THOUGHT}Hi", reasoning_content="so"), qwen3)
    with pytest.raises(DocumentRefused, match=r"messages\[1\].reasoning_content = '<think>so</think>': it spells"):
        supervised_sequences(document_of("Hi", reasoning_content="<think>so</think>"), qwen3)


def test_marks_that_the_model_does_not_have_are_text(tmp_path):
    speak = speaking(tmp_path, "llama3")
    content = f"{SPELLED_THOUGHT}{SPELLED_CALL} are marks of others, and <|eot_id|> ends no turn here."
    (sequence,) = supervised_sequences(document_of(content), speak)
    assert content in trained_text(speak, sequence)


def test_a_tools_message_behind_text_that_is_no_call_of_this_model_is_refused(tmp_path):
    with pytest.raises(DocumentRefused, match=r"line 1: messages\[2\].role = 'tool': it answers no call"):
        supervised_sequences(document_of(SPELLED_CALL, "1", replied="tool"), speaking(tmp_path, "llama3"))
    with pytest.raises(DocumentRefused, match=r"line 1: messages\[2\].role = 'tool': it answers no call"):
        document_of("I call nothing.", "1", replied="tool")


def test_what_others_say_may_spell_any_mark(qwen3):
    messages = [{"role": "user", "content": f"{SPELLED_THOUGHT} {SPELLED_CALL}"}, PHRASE]
    (document,) = documents_in([json.dumps({"messages": messages})])
    assert supervised_sequences(document, qwen3)


def test_the_built_in_alphabet_has_no_marks_that_text_could_spell():
    speak = CharacterRenderer(tokenizer_for("characters"), reasoning=True)
    message = AssistantMessage(f"{SPELLED_THOUGHT}{SPELLED_CALL}")
    assert speak.split(message, (PYTHON,)) == message
