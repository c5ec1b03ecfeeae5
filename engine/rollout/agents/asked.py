"""What an agent asks of the policy, whichever dialect it speaks, and how it is refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from engine.spec.message import AssistantMessage, Message, ToolSchema

Entry = Message | AssistantMessage
"""A message of a conversation: to the policy, or its own."""
RefusalKind = Literal[
    "malformed",
    "unsupported",
    "conversation",
    "template",
    "context",
    "budget",
    "rate",
    "key",
    "size",
    "route",
    "time",
    "model",
    "unavailable",
]
"""The request is no JSON or has a field of the wrong form; asks for an option that the generator lacks; its messages
cannot follow one another; the model's chat template cannot write them; they leave no room; calls or tokens are used up;
too many calls at once; the key is wrong; it is too large; there is no such endpoint; it did not arrive in time; there
is no such model; the model cannot answer now."""
STATUS: dict[RefusalKind, int] = {
    "malformed": 400,
    "unsupported": 400,
    "conversation": 400,
    "template": 400,
    "context": 400,
    "budget": 403,
    "rate": 429,
    "key": 401,
    "size": 413,
    "route": 404,
    "time": 408,
    "model": 404,
    "unavailable": 503,
}
"""The budget is no 429, which clients would try again."""


class RequestRefused(Exception):
    """A request that is answered with an error; the run goes on."""

    def __init__(self, kind: RefusalKind, message: str, *, field: str | None = None, retry_s: int = 1) -> None:
        """``retry_s``: after how long it may be tried again, where it may."""
        super().__init__(message)
        self.kind, self.field, self.retry_s = kind, field, retry_s

    def __reduce__(self) -> tuple[Callable[[], "RequestRefused"], tuple[()]]:
        """From a process to another it travels as what it was made of."""
        return partial(RequestRefused, self.kind, str(self), field=self.field, retry_s=self.retry_s), ()

    @property
    def status(self) -> int:
        return STATUS[self.kind]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, read."""

    messages: tuple[Entry, ...]
    """It ends with something for the policy to read."""
    tools: tuple[ToolSchema, ...] = ()
    model: str = "policy"
    """What the agent calls it."""
    choices: int = 1
    """How many turns are sampled after the same messages."""
    most_tokens: int | None = None
    stops: tuple[str, ...] = ()
    """Texts at which a turn ends, none of them empty; the agent is answered what stands before."""
    seed: int | None = None
    temperature: float | None = None
    """How the turn is to be sampled, this and the next two; None: not said.  A rollout's policy is sampled as its run
    says, whatever is asked for."""
    top_p: float | None = None
    top_k: int | None = None
    stream: bool = False
    logprobs: bool = False
    """Whether the answer shows the log-prob of each token."""
    usage_in_stream: bool = False
    echoed: Mapping[str, Any] = field(default_factory=dict)
    """What the answer says again of the request, in a dialect that does."""
