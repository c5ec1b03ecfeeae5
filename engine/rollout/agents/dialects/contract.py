"""What a dialect is: a translation of requests and answers, which knows no token and no socket."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from engine.rollout.agents.asked import Asked, RequestRefused
from engine.rollout.agents.capture import Call
from engine.rollout.agents.fields import Document


class Dialect(Protocol):
    def read(self, document: Document) -> Asked:
        """Raises RequestRefused, with the field, for what cannot be answered as it is asked."""
        ...

    def answer(self, asked: Asked, calls: Sequence[Call], id: str, pieces: Sequence[Sequence[str]]) -> dict[str, Any]:
        """``pieces``: of each call the text of each token, if ``asked.logprobs``.  ``id`` is the answer's own."""
        ...

    def events(self, asked: Asked, calls: Sequence[Call], id: str, pieces: Sequence[Sequence[str]]) -> Iterator[bytes]:
        """The same as server-sent events.  They come when the turn is over: what it says is known only then."""
        ...

    def refusal(self, refusal: RequestRefused) -> dict[str, Any]:
        """An error in this dialect's form."""
        ...


def event(document: Mapping[str, Any], name: str | None = None) -> bytes:
    heading = "" if name is None else f"event: {name}\n"
    return f"{heading}data: {json.dumps(document)}\n\n".encode()


def was_cut(call: Call) -> bool:
    return call.stop is None and call.generated.stopped_by != "stop"


def prompt_tokens(calls: Sequence[Call]) -> int:
    return len(calls[0].context.token_ids)


def sampled_tokens(calls: Sequence[Call]) -> int:
    return sum(len(call.generated.token_ids) for call in calls)
