"""What own conversations may look like: all of it is learned as it is given, or refused with line, field and remedy."""

import json

import pytest

from engine.rollout.chat_documents import DocumentRefused, documents_in, supervised_sequences
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
