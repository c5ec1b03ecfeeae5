"""Where a stop string ends a turn.

Generators end at tokens and not at texts, so a turn is sampled to its own end, and what stands behind the token that
completes the stop string is dropped as if it had never been sampled.  A policy samples one token after the other, so
what is kept is, token by token and with the same log-probs, what a generator would return that stops there by itself:
where a turn ends follows from what stands before, and never from what was dropped (docs/decisions/0043).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from engine.rollout.renderers.contract import Parsed, Renderer
from engine.spec.generation import Generated
from engine.spec.message import ToolSchema

MOST_TRIED = 256
"""Places of one turn that are looked at: in a thought, or in a call, a stop string may stand at each token."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A turn that ends at a stop string."""

    tokens: int
    """How many of it are kept."""
    parsed: Parsed
    """What they say, the stop string included."""
    text: str
    """What the agent is answered: all before the stop string."""
    stop: str


def stopped(
    generated: Generated, stops: Sequence[str], renderer: Renderer, tools: Sequence[ToolSchema]
) -> Stopped | None:
    """The turn up to the first token behind which its text holds one of ``stops``; None where it never does.

    Its text is what it says as a message: a thought and a tool call may hold such a string, and a turn that cannot be
    read is answered as it is.
    """
    for tokens in _candidates(generated, stops, renderer):
        parsed = renderer.parse(ended(generated, tokens, renderer), tools)
        if parsed.message.malformed is None and (found := _first(parsed.spoken, stops)) is not None:
            return Stopped(tokens, parsed, parsed.spoken[: found[0]], found[1])
    return None


def stopped_text(generated: Generated, stops: Sequence[str], renderer: Renderer) -> tuple[int, str, str] | None:
    """The same of a turn that is answered as the text that it is: how many tokens are kept, what stands before the stop
    string, and it."""
    pieces = renderer.pieces(generated.token_ids)
    text, places = "".join(pieces), list(accumulate(map(len, pieces), initial=0))
    completed = [place + len(stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not completed:
        return None
    tokens = bisect_left(places, min(completed))
    found = _first(text[: places[tokens]], stops)
    assert found is not None
    return tokens, text[: found[0]], found[1]


def ended(generated: Generated, tokens: int, renderer: Renderer) -> tuple[int, ...]:
    """The first ``tokens`` ids of a turn with an end: its own, or the renderer's where that is not among them."""
    has_end = generated.stopped_by == "stop" and tokens == len(generated.token_ids)
    return generated.token_ids if has_end else (*generated.token_ids[:tokens], renderer.end_id)


def _candidates(generated: Generated, stops: Sequence[str], renderer: Renderer) -> Iterator[int]:
    """Numbers of tokens behind which a stop string is complete, or was one token before, for a message may leave out
    white space at its end; and all of them."""
    overlap, before, was_there, tried = max(map(len, stops)) - 1, "", False, 0
    for number, piece in enumerate(renderer.pieces(generated.token_ids), start=1):
        text = before + piece
        is_there = any(stop in text for stop in stops)
        if (is_there or was_there) and tried < MOST_TRIED:
            tried += 1
            yield number
        before, was_there = text[len(text) - min(overlap, len(text)) :], is_there
    yield len(generated.token_ids)


def _first(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """The place of the stop string that begins first, and it; of several the longest."""
    found = [(place, -len(stop), stop) for stop in stops if (place := text.find(stop)) >= 0]
    return None if not found else (min(found)[0], min(found)[2])
