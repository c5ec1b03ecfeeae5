"""One row of a dataset as it is stored: the canonical form that every source is brought into.

``train.jsonl`` and its like hold one row a line.  Nothing is read or written here.
"""

import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from engine.spec.impossible import impossible
from engine.spec.strict import Strict

MOST_MESSAGES = 1000
LONGEST_METADATA_BYTES = 2**16
"""The longest form of a row's metadata as JSON text."""
DEEPEST_METADATA = 16
"""Tables and lists within each other."""


_NUL = re.compile(r"(?<!\\)(\\\\)*\\u0000")
"""An escaped NUL in JSON, and no backslash that is followed by the word."""


def _is_storable(text: str) -> str:
    """Half a surrogate pair is no character, and NUL is one that PostgreSQL and C do not take."""
    if "\0" in text:
        raise _unstorable("it holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _unstorable("it holds half of a surrogate pair, which is no character") from None
    return text


def _unstorable(problem: str) -> PydanticCustomError:
    return PydanticCustomError("unstorable_text", "{problem}", {"problem": problem, "remedy": "leave it out"})


Text = Annotated[str, AfterValidator(_is_storable)]
RowId = Annotated[Text, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
ImageReference = Annotated[
    str, StringConstraints(max_length=500, pattern=r"^[a-z0-9][\w.:/-]*(@sha256:[0-9a-f]{64})?$")
]


class CalledFunction(Strict):
    name: Annotated[Text, StringConstraints(min_length=1, max_length=200)]
    arguments: Text | dict[str, Any]
    """A JSON object, as itself or as its text."""

    @model_validator(mode="after")
    def _arguments_can_be_written(self) -> Self:
        if isinstance(self.arguments, dict):
            _json_text("arguments", self.arguments)
        return self


class RecordedToolCall(Strict):
    """A call as chat documents write it."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class DatasetMessage(Strict):
    """A message as own chat files have it, ``engine/rollout/chat_documents.py``; what says nothing is left out."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Text = ""
    reasoning_content: Text | None = None
    """What the assistant thought before it spoke."""
    name: Text | None = None
    tool_calls: list[RecordedToolCall] | None = None
    """The calls of the assistant alone."""
    tool_call_id: Text | None = None
    is_error: bool | None = None
    """Whether a message of a tool says that the call failed; None: it did not."""

    @model_validator(mode="before")
    @classmethod
    def _without_what_says_nothing(cls, given: Any) -> Any:
        """OpenAI's API returns a null for the content of a message that only calls."""
        if not isinstance(given, dict):
            return given
        silent = {"is_error"} if given.get("is_error") is False else set[str]()
        if given.get("content", "") is None and given.get("tool_calls"):
            silent.add("content")
        return {name: value for name, value in given.items() if name not in silent} if silent else given

    @model_validator(mode="after")
    def _only_the_assistant_thinks_and_only_tools_fail(self) -> Self:
        if self.reasoning_content is not None and self.role != "assistant":
            message = f"a message of the {self.role} has no thought"
            raise impossible("reasoning_content", self.reasoning_content, message, "move it into content")
        if self.is_error is not None and self.role != "tool":
            message = f"a message of the {self.role} answers no call"
            raise impossible("is_error", self.is_error, message, "leave it out; it belongs to messages of tools")
        return self

    @model_validator(mode="after")
    def _only_the_assistant_calls(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            remedy = "move them to the assistant's message"
            raise impossible("tool_calls", len(self.tool_calls), f"a message of the {self.role} calls no tool", remedy)
        return self


class DatasetRow(Strict):
    """A task: what the policy reads first, and what its work is compared with."""

    id: RowId
    """Unique in its version."""
    prompt: Text | None = None
    messages: Annotated[list[DatasetMessage], Field(min_length=1, max_length=MOST_MESSAGES)] | None = None
    """In place of a prompt: a conversation's beginning."""
    answer: Text | None = None
    """What a right answer is compared with."""
    tests: Text | None = None
    """Code that decides, in place of an answer or beside it."""
    image: ImageReference | None = None
    """The OCI image of the row's sandbox."""
    group: Text | None = None
    """Rows of one group are variants of one thing, and stand in one split."""
    metadata: dict[Text, Any] | None = None

    @model_validator(mode="after")
    def _asks_in_one_way(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            given = "both" if self.prompt is not None else "neither"
            remedy = "map one column to prompt or to messages, and fill it in every row"
            raise impossible("prompt", given, "a row has exactly one of prompt and messages", remedy)
        if self.prompt is not None and not self.prompt.strip():
            raise impossible(
                "prompt", self.prompt, "it is empty", "write what the policy is asked, or leave the row out"
            )
        return self

    @model_validator(mode="after")
    def _metadata_is_bounded(self) -> Self:
        if self.metadata is None:
            return self
        length = len(_json_text("metadata", self.metadata).encode())
        if length > LONGEST_METADATA_BYTES:
            message = f"it has {length} bytes as JSON, and may have {LONGEST_METADATA_BYTES}"
            raise impossible("metadata", "(long)", message, "leave out what no environment reads")
        return self

    def line(self) -> bytes:
        """The row as a line of its file, the newline included: equal rows are equal lines."""
        document = self.model_dump(mode="json", exclude_none=True)
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
        return text.encode() + b"\n"


def _json_text(field: str, value: Any) -> str:
    """The value as JSON.  Refuses what lies too deep in it, and what no JSON and no database has."""
    if _depth(value) > DEEPEST_METADATA:
        message = f"tables and lists lie more than {DEEPEST_METADATA} deep in it"
        raise impossible(field, "(nested)", message, "flatten it")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError as error:
        raise impossible(field, "(text)", str(error)[:200], "write finite numbers and whole characters") from error
    if _NUL.search(text):
        raise impossible(field, "(text)", "it holds a NUL character", "leave the character out")
    return text


def _depth(value: Any) -> int:
    """How many tables and lists lie within each other; counted level by level, because recursion has a bound."""
    level, depth = [value], 0
    while level := [inner for inner in level if isinstance(inner, dict | list)]:
        depth += 1
        if depth > DEEPEST_METADATA:
            return depth
        level = [child for inner in level for child in (inner.values() if isinstance(inner, dict) else inner)]
    return depth
