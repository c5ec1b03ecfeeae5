"""What a recorded turn says, as a message: another model's ids mean nothing here, its text and its calls do.

The calls are those of the record.  What was said before them stands in the turn's text only, in the form of the model
that wrote it; a form is believed where reading the text by it gives exactly the recorded calls.
"""

from collections.abc import Iterator, Sequence

from engine.rollout.renderers.tool_calls import FORMATS, Reading
from engine.spec.message import AssistantMessage, ToolRequest, ToolSchema
from engine.spec.trajectory import Turn

_CALL = "<tool>"
"""The mark of the built-in alphabet, a token of its own."""
_THOUGHT_BEGINS, _THOUGHT_ENDS = "<think>", "</think>"


class UnreadableTurn(ValueError):
    """A recorded turn that cannot be said again; the message says why in a few words."""


def recorded_message(turn: Turn, tools: Sequence[ToolSchema], *, with_thoughts: bool) -> AssistantMessage:
    """The calls of a turn that has some, and ``with_thoughts`` what was written before them.

    Raises UnreadableTurn.
    """
    if any(call.written is not None for call in turn.tool_calls):
        raise UnreadableTurn("a call without readable arguments")
    calls = AssistantMessage(requests=tuple(ToolRequest(call.name, call.arguments) for call in turn.tool_calls))
    if not with_thoughts:
        return calls
    for message in _readings(turn.pieces, tools, calls):
        if _calls_of(message) == _calls_of(calls):
            return message
    raise UnreadableTurn("a turn in no known form")


def _readings(
    pieces: Sequence[str], tools: Sequence[ToolSchema], calls: AssistantMessage
) -> Iterator[AssistantMessage]:
    """What the turn says in each form, the end mark being its last token or none."""
    if _CALL in pieces:
        yield AssistantMessage(requests=calls.requests, reasoning="".join(pieces[: pieces.index(_CALL)]))
        return
    for written in ("".join(pieces[:-1]), "".join(pieces)):
        thought, spoken = _without_thought(written)
        for call_format in FORMATS.values():
            message = call_format.read(Reading(spoken, ""), tools)
            yield AssistantMessage(message.content, message.requests, message.malformed, thought)


def _without_thought(written: str) -> tuple[str, str]:
    """The thought that a turn begins with, and what follows.  The mark that opens it may stand in the prompt."""
    thought, ended, spoken = written.partition(_THOUGHT_ENDS)
    if not ended:
        return "", written
    return thought.strip().removeprefix(_THOUGHT_BEGINS).strip(), spoken


def _calls_of(message: AssistantMessage) -> list[tuple[str, dict[str, object]]] | None:
    if any(request.malformed is not None for request in message.requests):
        return None
    return [(request.name, dict(request.arguments)) for request in message.requests]
