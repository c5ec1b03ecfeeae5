"""What a chat with a model says in both directions: JSON lines between ``python -m engine chat`` and whoever runs it.

    in    send (messages, sampling), stop, new
    out   ready, then of each send: reading, tokens, said, result ... and one finished or failed; alert at any time

Lines are numbered by nobody: the process that starts a chat keeps what it wants to show again.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from engine.spec.impossible import impossible
from engine.spec.message import unstorable
from engine.spec.strict import MOST_THINGS, Strict

LONGEST_LINE = 8 * 2**20
"""Bytes of a line that is read."""
LONGEST_TEXT = 200_000
"""Characters of a message."""
LONGEST_SHOWN = 20_000
"""Characters of what a tool answered, or of what was read, that are told; the model reads all of it."""
MOST_MESSAGES = 1000


def _storable(text: str) -> str:
    if (problem := unstorable(text)) is not None:
        raise ValueError(problem)
    return text


def _storable_object(value: dict[str, Any]) -> dict[str, Any]:
    if (problem := unstorable(value)) is not None:
        raise ValueError(problem)
    return value


def storable_text(text: str) -> str:
    """For readers: U+FFFD stands for what a policy or a tool may write and no database keeps."""
    return "".join(
        "\ufffd" if character == "\0" or "\ud800" <= character <= "\udfff" else character for character in text
    )


Text = Annotated[str, Field(max_length=LONGEST_TEXT), AfterValidator(_storable)]
Id = Annotated[str, Field(max_length=100), AfterValidator(_storable)]
Arguments = Annotated[dict[str, Any], AfterValidator(_storable_object)]


class Sampling(Strict):
    """How an answer is sampled.  Equal seeds, settings and histories give equal tokens."""

    temperature: float = Field(default=1.0, ge=0, le=10)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """From the smallest set of likeliest tokens whose probability reaches this; 1: from all."""
    top_k: int = Field(default=0, ge=0, le=MOST_THINGS)
    """From so many of the likeliest tokens; 0: from all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """From tokens at least so many times as likely as the likeliest; 0: from all."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    most_tokens: int = Field(default=512, ge=1, le=2**16)
    """Sampled tokens of one turn."""
    most_turns: int = Field(default=8, ge=1, le=64)
    """Turns of one answer: a tool call is one, and so is the answer."""
    reasoning: Literal["auto", "on", "off"] = "auto"
    """Whether a turn may begin with a thought; ``auto`` is what the model's template does by itself."""


class ChatCall(Strict):
    """A tool call that the model wrote."""

    id: Id = ""
    name: Text
    arguments: Arguments = {}
    problem: str | None = None
    """Why the arguments cannot be read; then ``written`` holds them."""
    written: str | None = None


class ChatMessage(Strict):
    """A message of a conversation.  An assistant's may be given by its tokens, which are then read as they are."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Text = ""
    reasoning: Text = ""
    """In an assistant's message, what stands before its calls or its answer."""
    calls: list[ChatCall] = Field(default=[], max_length=64)
    """The calls of an assistant."""
    token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(default=None, min_length=1, max_length=2**16)
    """An assistant's turn as it was sampled, which its other fields then only repeat."""
    call: Id | None = None
    """The call that a tool's message answers."""
    tool: Id | None = None
    """The name of the tool that speaks."""

    @model_validator(mode="after")
    def _fields_belong_to_the_role(self) -> Self:
        of_others = {"assistant": ("call", "tool"), "tool": ("calls", "token_ids", "reasoning")}
        for field in of_others.get(self.role, ("calls", "token_ids", "reasoning", "call", "tool")):
            if getattr(self, field):
                raise impossible(field, "set", f"a message of the {self.role} has no {field}", f"remove {field}")
        return self


Conversation = Annotated[list[ChatMessage], Field(max_length=MOST_MESSAGES)]


class Send(Strict):
    """Messages that the model has not read yet, and how it is to answer."""

    kind: Literal["send"] = "send"
    id: Id = ""
    """Comes back with everything that answers."""
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    sampling: Sampling = Sampling()


class Stop(Strict):
    """End the answer that is being sampled; what there is of it stays in the conversation."""

    kind: Literal["stop"] = "stop"


class New(Strict):
    """Begin a conversation, with ``history`` if it is one that was held before.  Tools begin as new."""

    kind: Literal["new"] = "new"
    history: Conversation = []


ChatInput = Annotated[Send | Stop | New, Field(discriminator="kind")]
CHAT_INPUT: TypeAdapter[Send | Stop | New] = TypeAdapter(ChatInput)


class ChatTool(Strict):
    name: str
    description: str = ""
    parameters: dict[str, Any]


class Ready(Strict):
    """The model is loaded, or a conversation has begun."""

    kind: Literal["ready"] = "ready"
    model: str
    context_tokens: int
    tools: list[ChatTool]
    opening: list[ChatMessage]
    """What an episode of the environment's task begins with, for whoever wants to begin so; the model has not read
    it."""


class Reading(Strict):
    """The prompt of a turn is ready."""

    kind: Literal["reading"] = "reading"
    id: str
    turn: int
    tokens: int
    """All that stands before the turn."""
    text: str
    """What was added since the last one, as the model reads it."""


class ShownToken(Strict):
    token: int
    text: str
    logprob: float


class Tokens(Strict):
    kind: Literal["tokens"] = "tokens"
    id: str
    turn: int
    tokens: list[ShownToken]


class FinishedTurn(Strict):
    """A turn is over: what it says."""

    kind: Literal["said"] = "said"
    id: str
    turn: int
    message: ChatMessage
    problem: str | None = None
    """Why it is neither calls nor an answer."""


class Result(Strict):
    kind: Literal["result"] = "result"
    id: str
    turn: int
    call: str
    tool: str
    output: str
    status: Literal["ok", "error"]
    error_class: str | None = None
    seconds: float


class Alert(Strict):
    """A detector has found something in what the sandbox of the tools did."""

    kind: Literal["alert"] = "alert"
    rule: str
    title: str
    severity: Literal["info", "warning", "critical"]
    subject: str
    """What it is about: a destination, a program."""
    frozen: bool
    """Whether the sandbox is frozen for it, as the response policy of the environment says."""


class Usage(Strict):
    turns: int
    read_tokens: int
    sampled_tokens: int
    seconds: float


FinishReason = Literal[
    "answered", "calls", "malformed", "length", "context", "turn-limit", "stopped", "time-limit", "done", "frozen"
]
"""``calls``: the model calls tools, and there is no environment to answer them.  ``done``: the environment's task is
over.  ``frozen``: an alert stopped the sandbox."""


class Finished(Strict):
    kind: Literal["finished"] = "finished"
    id: str
    reason: FinishReason
    usage: Usage
    tools_begin_anew: bool = False
    """What tools had done is gone: the next call finds them as new."""


class Failed(Strict):
    """A line was not taken, and the conversation is as before it; or an answer broke off, and what was said stays."""

    kind: Literal["failed"] = "failed"
    id: str = ""
    field: str
    value: str
    message: str
    remedy: str


ChatLine = Ready | Reading | Tokens | FinishedTurn | Result | Alert | Finished | Failed
ChatOutput = Annotated[ChatLine, Field(discriminator="kind")]
CHAT_OUTPUT: TypeAdapter[ChatLine] = TypeAdapter(ChatOutput)
