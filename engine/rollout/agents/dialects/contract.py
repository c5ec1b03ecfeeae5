"""What a dialect is: a translation of requests and answers, which knows no token and no socket."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from engine.rollout.agents.asked import Asked, RequestRefused
from engine.rollout.agents.capture import Call
from engine.rollout.agents.fields import Document
from engine.rollout.renderers.contract import Settled
from engine.spec.message import AssistantMessage


class Dialect(Protocol):
    def read(self, document: Document) -> Asked:
        """Raises RequestRefused, with the field, for what cannot be answered as it is asked."""
        ...

    def answer(self, asked: Asked, calls: Sequence[Call], id: str, pieces: Sequence[Sequence[str]]) -> dict[str, Any]:
        """``pieces``: of each call the text of each token, if ``asked.logprobs``.  ``id`` is the answer's own."""
        ...

    def stream(self, asked: Asked, id: str) -> "EventStream":
        """The same as server-sent events."""
        ...

    def refusal(self, refusal: RequestRefused) -> dict[str, Any]:
        """An error in this dialect's form."""
        ...


class EventStream(Protocol):
    """One answer as events, in the order of these methods.  ``begin`` comes once, and before anything is shown."""

    def begin(self, prompt_tokens: int) -> Iterator[bytes]: ...

    def show(self, choice: int, more: Settled) -> Iterator[bytes]:
        """What a choice says further, which may be nothing."""
        ...

    def end(self, calls: Sequence[Call], pieces: Sequence[Sequence[str]]) -> Iterator[bytes]:
        """What has not been shown of the calls, and the end."""
        ...

    def fail(self, refusal: RequestRefused) -> Iterator[bytes]:
        """An answer that cannot be ended: nothing follows."""
        ...


def event(document: Mapping[str, Any], name: str | None = None) -> bytes:
    heading = "" if name is None else f"event: {name}\n"
    return f"{heading}data: {json.dumps(document)}\n\n".encode()


def left_of(reply: AssistantMessage, shown: Settled) -> Settled:
    """What of a reply has not been shown.  A thought that ended otherwise than it was shown stays as it was shown."""
    reasoning = reply.reasoning.removeprefix(shown.reasoning) if reply.reasoning.startswith(shown.reasoning) else ""
    return Settled(reasoning, reply.content[len(shown.content) :])


def was_cut(call: Call) -> bool:
    return call.stop is None and call.generated.stopped_by != "stop"


def prompt_tokens(calls: Sequence[Call]) -> int:
    return len(calls[0].context.token_ids)


def sampled_tokens(calls: Sequence[Call]) -> int:
    return sum(len(call.generated.token_ids) for call in calls)
