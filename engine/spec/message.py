"""What a policy and its environment say to each other: text, and tool calls with JSON arguments.

No token is in here.  A renderer (``engine/rollout/renderers``) turns messages into the ids that a policy reads,
and the ids that it wrote into an ``AssistantMessage``; what could not be read is in there too, with the reason.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool that a policy may call."""

    name: str
    """Without white space: a renderer may write a space behind it."""
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    """The JSON schema (draft 2020-12) of the arguments, which are an object."""

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
class ToolRequest:
    """A tool call that the policy asks for.  Whether there is such a tool is not known yet."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The arguments for readers: the text itself where it is the only argument, JSON otherwise."""
        values = list(self.arguments.values())
        if len(values) == 1 and isinstance(values[0], str):
            return values[0]
        return json.dumps(dict(self.arguments), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Malformed:
    """What a policy wrote where a call or an answer was due."""

    kind: Literal["turn", "call"]
    """``turn``: neither a call nor an answer.  ``call``: a call whose arguments cannot be read; it can be answered."""
    text: str
    reason: str
    tool: str = ""
    """The tool that a malformed call names."""


@dataclass(frozen=True, slots=True)
class Message:
    """Something for the policy to read."""

    role: Role
    content: str
    tool: str | None = None
    """The tool that says it, where ``role`` is ``tool``."""


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One turn of the policy: a tool call, an answer, or neither."""

    content: str = ""
    """The answer, where no tool is called."""
    requests: tuple[ToolRequest, ...] = ()
    """At most one, because a turn of a trajectory records one call."""
    malformed: Malformed | None = None
    reasoning: str = ""
    """What stands before the call or the answer."""

    def __post_init__(self) -> None:
        if len(self.requests) > 1:
            raise ValueError(f"a message has at most one tool request, not {len(self.requests)}")

    @classmethod
    def calling(cls, name: str, arguments: Mapping[str, Any], *, reasoning: str = "") -> Self:
        return cls(requests=(ToolRequest(name, arguments),), reasoning=reasoning)

    @property
    def calls_tool(self) -> bool:
        """Whether an observation answers it, be the call malformed or not."""
        return bool(self.requests) or (self.malformed is not None and self.malformed.kind == "call")

    @property
    def answers(self) -> bool:
        """Whether it ends the episode with an answer."""
        return not self.requests and self.malformed is None

    @property
    def call_text(self) -> str:
        """The call for readers; empty where there is none."""
        if self.requests:
            return self.requests[0].text
        return self.malformed.text if self.malformed is not None and self.calls_tool else ""
