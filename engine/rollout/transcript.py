"""A trajectory as it is being written: what stands before the next turn, and in which segment the turn belongs.

    prompt ──► context ──► turn ──► observation ──┬─► bridge ──► context of the same segment
                                                  └─► written again ──► a new segment, which shares a beginning

It knows no generator and no environment: an episode and a demonstration are written alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.rollout.context import rewritten
from engine.rollout.renderers.contract import Conversation, Exchange, Parsed, Renderer, Rewritten
from engine.rollout.shared_prefix import shared_prefix
from engine.spec.context import Context
from engine.spec.message import Message, ToolSchema
from engine.spec.trajectory import Segment, SharedPrefix, Turn

TurnPlace = tuple[int, int]
"""A segment, and a turn in it, both from 0."""


@dataclass(frozen=True, slots=True)
class _Main:
    """Where the main conversation stands while another one goes on."""

    conversation: Conversation
    template: Context | None
    ids: list[int]
    """All that was read and sampled in it."""
    turn: tuple[int, ...]
    """Its latest turn."""


class Transcript:
    """Begins with the opening.  ``wrote`` and ``observed`` take turns."""

    def __init__(
        self,
        renderer: Renderer,
        opening: Sequence[Message],
        tools: Sequence[ToolSchema],
        experience: Sequence[str] = (),
        context: Context | None = None,
    ) -> None:
        self._renderer, self._template = renderer, context
        self._conversation = Conversation(tuple(opening), tuple(tools), tuple(experience), ())
        self._context = renderer.prompt(opening, tools, experience)
        self._experience_span = renderer.experience_span(opening, tools, experience) if experience else None
        self._observed_text: str | None = None
        self._prefix: SharedPrefix | None = None
        self._begins_segment = True
        self._segments: list[Segment] = []
        self._main: _Main | None = None
        self._ids: list[list[int]] = []
        """All tokens of each segment."""

    @property
    def turns(self) -> list[Turn]:
        return [turn for segment in self._segments for turn in segment.turns]

    @property
    def segments(self) -> list[Segment]:
        return self._segments

    def shared_by(self, segment: int) -> list[int]:
        """The tokens that the segment shares with an earlier one and does not hold itself."""
        prefix = self._segments[segment].prefix
        return [] if prefix is None else self._ids[prefix.segment][: prefix.tokens]

    @property
    def context(self) -> list[int]:
        """What the policy reads right before the next turn; ``history`` without what stood there already."""
        return self._context

    @property
    def history(self) -> list[int]:
        """Everything that stands before the next turn."""
        return [*self._before, *self._context]

    def turn(
        self,
        token_ids: Sequence[int],
        *,
        logprobs: Sequence[float],
        policy_versions: Sequence[int],
        began_at: float | None = None,
        seconds: float | None = None,
    ) -> Turn:
        """The next turn, of which nothing is known but how it was sampled and what was read before it."""
        return Turn(
            context_ids=self._context,
            context_text=self._renderer.text(self._context),
            token_ids=list(token_ids),
            pieces=self._renderer.pieces(token_ids),
            logprobs=list(logprobs),
            policy_versions=list(policy_versions),
            observed_text=self._observed_text,
            experience_span=self._experience_span,
            began_at=began_at,
            seconds=seconds,
        )

    def wrote(self, turn: Turn) -> TurnPlace:
        """The turn, made by ``turn``, stands from now on, in the place that is returned."""
        if self._begins_segment:
            self._ids.append(self._before)
            self._segments.append(Segment(turns=[turn], prefix=self._prefix))
        else:
            last = self._segments[-1]
            self._segments[-1] = last.model_copy(update={"turns": [*last.turns, turn]})
        self._ids[-1] = [*self._ids[-1], *turn.context_ids, *turn.token_ids]
        return len(self._segments) - 1, len(self._segments[-1].turns) - 1

    def mark(self, place: TurnPlace, marks: Mapping[str, object]) -> Turn:
        """The turn, with what became known of it after it was written."""
        segment, number = place
        turns = list(self._segments[segment].turns)
        turns[number] = turns[number].model_copy(update=dict(marks))
        self._segments[segment] = self._segments[segment].model_copy(update={"turns": turns})
        return turns[number]

    def goes_aside(self, opening: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        """Another conversation begins behind the latest turn of the main one, or behind another one."""
        if self._main is None:
            turn = tuple(self.turns[-1].token_ids)
            self._main = _Main(self._conversation, self._template, list(self._ids[-1]), turn)
        self._conversation, self._template = Conversation(tuple(opening), tuple(tools), (), ()), None
        self._begins_again(Rewritten(tuple(self._renderer.prompt(opening, tools)), 0))

    @property
    def is_aside(self) -> bool:
        return self._main is not None

    def comes_back(self, parsed: Parsed, messages: Sequence[Message]) -> None:
        """The main conversation goes on behind its latest turn, which says ``parsed``, with what is read there."""
        main, self._main = self._main, None
        assert main is not None, "nothing went aside"
        exchange = Exchange(main.turn, parsed, tuple(messages))
        exchanges = (*main.conversation.exchanges, exchange)
        self._conversation, self._template = replace(main.conversation, exchanges=exchanges), main.template
        again = rewritten(self._template, self._renderer, self._conversation)
        if again is None:
            again = Rewritten((*main.ids, *self._renderer.bridge(messages)), len(main.ids))
        self._begins_again(again)

    def observed(self, parsed: Parsed, messages: Sequence[Message]) -> None:
        """Take in what the policy reads behind the latest turn, which says ``parsed``."""
        exchange = Exchange(tuple(self.turns[-1].token_ids), parsed, tuple(messages))
        exchanges = (*self._conversation.exchanges, exchange)
        self._conversation = replace(self._conversation, exchanges=exchanges)
        again = rewritten(self._template, self._renderer, self._conversation)
        if again is None:
            self._goes_on(self._renderer.bridge(messages))
        elif len(again.token_ids) > len(self._ids[-1]) and self._begins_with_latest(again):
            self._goes_on(list(again.token_ids[len(self._ids[-1]) :]))
        else:
            self._begins_again(again)

    def _begins_with_latest(self, again: Rewritten) -> bool:
        return list(again.token_ids[: len(self._ids[-1])]) == self._ids[-1]

    @property
    def _before(self) -> list[int]:
        """Where no segment begins, all of the latest one; where one begins, what it shares."""
        if not self._begins_segment:
            return self._ids[-1]
        return [] if self._prefix is None else self._ids[self._prefix.segment][: self._prefix.tokens]

    def _goes_on(self, context: list[int]) -> None:
        self._context, self._begins_segment = context, False
        self._observed_text = self._experience_span = None

    def _begins_again(self, again: Rewritten) -> None:
        """At least one token of the new segment's context is its own."""
        ids = list(again.token_ids)
        shared = [_common(ids[:-1], earlier) for earlier in self._ids]
        longest = max(shared)
        self._prefix = self._shared(shared.index(longest), longest) if longest else None
        self._context, self._begins_segment = ids[longest:], True
        self._observed_text = self._renderer.text(ids[again.observed :])
        self._experience_span = _behind(again.experience_span, longest)

    def _shared(self, number: int, tokens: int) -> SharedPrefix:
        segment = self._segments[number]
        inherited = 0 if segment.prefix is None else segment.prefix.tokens
        return shared_prefix(number, tokens, inherited=inherited, turns=segment.turns, renderer=self._renderer)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens the two have in common, from the first one on."""
    differing = (place for place, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(left), len(right)))


def _behind(span: tuple[int, int] | None, shared: int) -> tuple[int, int] | None:
    """What of a span lies behind a shared beginning, counted from its end."""
    if span is None or span[1] <= shared:
        return None
    return max(span[0] - shared, 0), span[1] - shared
