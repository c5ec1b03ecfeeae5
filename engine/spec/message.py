"""What a policy and its environment say to each other: text, and tool calls with JSON arguments.

No token is in here.  A renderer (``engine/rollout/renderers``) turns messages into the ids that a policy reads,
and the ids that it wrote into an ``AssistantMessage``; what could not be read is in there too, with the reason.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import isfinite
from typing import Any, Literal, Self

Role = Literal["system", "user", "assistant", "tool"]

DEEPEST_ARGUMENTS = 64
"""Objects and lists inside one another.  Whoever stores a call as JSON can do so far beyond that."""


_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def text_of_arguments(arguments: Mapping[str, Any]) -> str:
    """The arguments of a call for readers: the text itself where it is the only argument, JSON otherwise."""
    values = list(arguments.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(dict(arguments), ensure_ascii=False)


def unstorable(value: object, depth: int = 0) -> str | None:
    """Return why ``value`` cannot be stored as JSON and read back as it is; None where it can."""
    match value:
        case str():
            return _unstorable_text(value)
        case None | bool() | int():
            return None
        case float():
            return None if isfinite(value) else f"{value} is no number of JSON"
        case dict() | Mapping():
            inside: Iterable[object] = chain.from_iterable(value.items())
        case list() | tuple():
            inside = value
        case _:
            return f"a {type(value).__name__} is no JSON"
    if depth == DEEPEST_ARGUMENTS:
        return f"more than {DEEPEST_ARGUMENTS} objects and lists inside one another"
    for part in inside:
        # Most parts are texts, and looking at one takes less than a call of this function.
        problem = _unstorable_text(part) if type(part) is str else unstorable(part, depth + 1)
        if problem is not None:
            return problem
    return None


def _unstorable_text(text: str) -> str | None:
    if not text.isascii() and _HALF_A_PAIR.search(text):
        return "half a surrogate pair is no text"
    return "the character U+0000 cannot be stored" if "\0" in text else None


def arguments_in(text: str) -> dict[str, Any]:
    """The arguments of a call that a policy wrote as JSON.  Raises ValueError, which says what is wrong with them."""
    try:
        arguments = json.loads(text, parse_constant=_refused_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the arguments are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are no JSON object")
    if problem := unstorable(arguments):
        raise ValueError(f"the arguments cannot be kept: {problem}")
    return arguments


def _refused_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool that a policy may call."""

    name: str
    """Without white space: a renderer may write a space behind it."""
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    """The JSON schema (draft 2020-12) of the arguments, which are an object."""
    document: Mapping[str, Any] | None = None
    """The tool as its author wrote it, for templates that print it; absent: it has no other form than these fields."""

    @classmethod
    def of_text(cls, name: str, argument: str, description: str = "") -> Self:
        """A tool whose only argument is a string."""
        properties = {argument: {"type": "string"}}
        parameters = {
            "type": "object",
            "properties": properties,
            "required": [argument],
            "additionalProperties": False,
        }
        return cls(name, description, parameters)

    @property
    def only_text_argument(self) -> str | None:
        """The name of the only argument where it is a string; None for every other tool."""
        match self.parameters.get("properties"):
            case Mapping() as properties if len(properties) == 1:
                ((name, schema),) = properties.items()
                return name if isinstance(schema, Mapping) and schema.get("type") == "string" else None
        return None


@dataclass(frozen=True, slots=True)
class Malformed:
    """What a policy wrote where a call, its arguments or an answer were due."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool call that the policy asks for.  Whether there is such a tool is not known yet."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    """Its own within the message, which gives one where this is empty.  The record of the call, and the message that
    tells its result, carry it too."""
    malformed: Malformed | None = None
    """Arguments that cannot be read.  Such a call is answered, and no environment sees it."""

    @property
    def text(self) -> str:
        """The arguments for readers."""
        return text_of_arguments(self.arguments) if self.malformed is None else self.malformed.text


@dataclass(frozen=True, slots=True)
class Message:
    """Something for the policy to read."""

    role: Role
    content: str
    tool: str | None = None
    """The tool that says it, where ``role`` is ``tool``."""
    call: str | None = None
    """The id of the call whose result it is, where ``role`` is ``tool``."""
    speaker: str | None = None
    """The name of the user or the system that says it, for templates that write it."""


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One turn of the policy: tool calls, an answer, or neither."""

    content: str = ""
    """The answer; where a tool is called, what is said before the call."""
    requests: tuple[ToolRequest, ...] = ()
    """The calls in the order in which they were written.  Each has an id, given by the renderer or here."""
    malformed: Malformed | None = None
    """What it wrote instead, where it is neither a call nor an answer."""
    reasoning: str = ""
    """What stands before the calls or the answer."""

    def __post_init__(self) -> None:
        if self.requests and self.malformed is not None:
            raise ValueError("a malformed message has no tool requests")
        named = tuple(
            request if request.id else replace(request, id=f"call-{position}")
            for position, request in enumerate(self.requests, start=1)
        )
        ids = [request.id for request in named]
        if len(set(ids)) < len(ids):
            raise ValueError(f"two tool requests of a message have the same id: {', '.join(ids)}")
        object.__setattr__(self, "requests", named)

    @classmethod
    def calling(cls, name: str, arguments: Mapping[str, Any], *, reasoning: str = "") -> Self:
        return cls(requests=(ToolRequest(name, arguments),), reasoning=reasoning)

    @property
    def calls_tool(self) -> bool:
        """Return whether an observation answers its calls, be they malformed or not."""
        return bool(self.requests)

    @property
    def answers(self) -> bool:
        """Return whether it is an answer.  What follows on one is for the environment to say."""
        return not self.requests and self.malformed is None

    @property
    def call_text(self) -> str:
        """The calls for readers, one below the other; empty where there is none."""
        return "\n".join(request.text for request in self.requests)
