"""From the calls of an agent to the segments of a trajectory.

A call whose context begins with all that was read and sampled in a segment extends that segment.  Every other one (an
edited history, a summary, a sub-agent, a second call of the same messages) begins a segment of its own, which shares
the longest beginning that it has in common with an earlier one.  So a sampled token stands in one turn of one segment,
where it is trained; wherever else it stands, it is only read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.rollout.agents.contexts import Context
from engine.rollout.renderers.contract import Renderer
from engine.rollout.shared_prefix import shared_prefix
from engine.spec.generation import Generated
from engine.spec.message import AssistantMessage
from engine.spec.trajectory import Segment, SharedPrefix, ToolCall, Turn


@dataclass(slots=True)
class Call:
    """A turn that was sampled for an agent, whether the agent has seen it or not."""

    context: Context
    generated: Generated
    message: AssistantMessage
    """What the turn says."""
    reply: AssistantMessage
    """The same as the agent is answered it: each tool call has an id, what cannot be read is text, and a stop string
    and what stands behind it are left out."""
    stop: str | None = None
    """The stop string that ended it.  ``generated`` then ends with the token that completed it."""
    dropped_tokens: int = 0
    """Tokens that were sampled behind the stop string."""
    results: dict[str, str] = field(default_factory=dict)
    """What the agent sent as results of its tool calls, by their ids."""


@dataclass(slots=True)
class _Grown:
    """A segment under way, with all of its tokens."""

    token_ids: list[int]
    turns: list[Turn]
    numbers: list[int]
    prefix: SharedPrefix | None


def segments_of(calls: Sequence[Call], renderer: Renderer) -> list[Segment]:
    """``calls`` stand in order of time: one that goes on from another stands behind it."""
    grown: list[_Grown] = []
    for number, call in enumerate(calls):
        ids = list(call.context.token_ids)
        segment = _extended_by(ids, grown)
        if segment is None:
            segment = _begun(ids, grown, renderer)
            grown.append(segment)
        turn = _turn(call, len(segment.token_ids), renderer, begins=not segment.turns)
        segment.turns.append(turn)
        segment.numbers.append(number)
        segment.token_ids += [*turn.context_ids, *turn.token_ids]
    return [Segment(turns=segment.turns, prefix=segment.prefix, numbers=segment.numbers) for segment in grown]


def _extended_by(ids: list[int], grown: Sequence[_Grown]) -> _Grown | None:
    """The longest segment with which ``ids`` begin, and behind which something stands."""
    fitting = [it for it in grown if len(it.token_ids) < len(ids) and ids[: len(it.token_ids)] == it.token_ids]
    return max(fitting, key=lambda it: len(it.token_ids), default=None)


def _begun(ids: list[int], grown: Sequence[_Grown], renderer: Renderer) -> _Grown:
    """A segment without turns.  At least one token of its context is its own."""
    shared = [common(ids[:-1], it.token_ids) for it in grown]
    longest = max(shared, default=0)
    if not longest:
        return _Grown([], [], [], None)
    number = shared.index(longest)
    holder = grown[number]
    inherited = 0 if holder.prefix is None else holder.prefix.tokens
    prefix = shared_prefix(number, longest, inherited=inherited, turns=holder.turns, renderer=renderer)
    return _Grown(ids[:longest], [], [], prefix)


def common(left: list[int], right: list[int]) -> int:
    """How many tokens the two have in common, from the first one on; found by halving."""
    equal, most = 0, min(len(left), len(right))
    while equal < most:
        middle = (equal + most + 1) // 2
        if left[equal:middle] == right[equal:middle]:
            equal = middle
        else:
            most = middle - 1
    return equal


def _turn(call: Call, read: int, renderer: Renderer, *, begins: bool) -> Turn:
    """``read``: how many tokens of the context stand in the segment already."""
    ids, generated = list(call.context.token_ids), call.generated
    span = call.context.experience_span if begins else None
    return Turn(
        context_ids=ids[read:],
        context_text=renderer.text(ids[read:]),
        token_ids=list(generated.token_ids),
        pieces=renderer.pieces(generated.token_ids),
        logprobs=list(generated.logprobs),
        policy_versions=list(generated.policy_versions),
        tool_calls=_records(call.reply, call.results),
        answered=call.message.answers,
        observed_text=None if call.context.observed == read else renderer.text(ids[call.context.observed :]),
        experience_span=None if span is None or span[1] <= read else (max(span[0] - read, 0), span[1] - read),
        began_at=generated.began_at,
        seconds=generated.seconds,
    )


def _records(reply: AssistantMessage, results: Mapping[str, str]) -> list[ToolCall]:
    """The agent makes its calls itself: what came of them is what it then told the policy, and no fault is known."""
    return [ToolCall.of(request, results.get(request.id, ""), seconds=0.0) for request in reply.requests]
