"""The conversations that a trajectory holds, each from its first token to its last.

    segment ── its shared prefix, in the segments that hold it ── its own turns

A branch is a segment that no later one goes on from as a whole.  Its passages are the turns that stand in its context,
in the order in which they are read; the last of what is shared may be a part of a turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from engine.spec.trajectory import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Passage:
    """A turn as far as it stands in one context."""

    number: int
    """Counted as in ``Trajectory.turns``."""
    segment: int
    """The segment that holds the turn."""
    turn: Turn
    read_tokens: int
    """How many of the turn's ``context_ids`` were read, from the first one on."""
    sampled_tokens: int
    """How many of its ``token_ids`` were sampled."""
    shared: bool
    """It stands in an earlier segment than the one whose context this is."""
    characters: int | None = None
    """How long what is read of its context is, where that is a part and its length is known."""

    @property
    def read_text(self) -> str | None:
        """None where the text is not known: a context is read in part, and nobody kept which letters."""
        if self.read_tokens == len(self.turn.context_ids):
            return self.turn.context_text
        return None if self.characters is None else self.turn.context_text[: self.characters]

    @property
    def sampled_text(self) -> str:
        return "".join(self.turn.pieces[: self.sampled_tokens])

    @property
    def token_count(self) -> int:
        return self.read_tokens + self.sampled_tokens

    @property
    def is_whole(self) -> bool:
        return self.token_count == self.turn.token_count


def branches_of(trajectory: Trajectory) -> list[int]:
    """The numbers of the segments that are branches; every turn stands in the context of at least one."""
    whole = {
        segment.prefix.segment
        for segment in trajectory.segments
        if segment.prefix and segment.prefix.tokens == trajectory.segments[segment.prefix.segment].token_count
    }
    return [number for number in range(len(trajectory.segments)) if number not in whole]


def passages_of(trajectory: Trajectory, segment: int) -> list[Passage]:
    """What stands in the context of ``segment`` at its end."""
    numbers = trajectory.turn_numbers
    passages: list[Passage] = []
    for holder, tokens, characters in _holders(trajectory, segment):
        passages += _own(trajectory, numbers[holder], holder, tokens, shared=holder != segment)
        if characters is not None and passages:
            passages[-1] = replace(passages[-1], characters=characters)
    return passages


def _holders(trajectory: Trajectory, segment: int) -> Sequence[tuple[int, int, int | None]]:
    """The segments that hold the context, the earliest first: with the tokens of their own that stand in it, and the
    characters that are read of the last context, where that is cut and they are known."""
    holders: list[tuple[int, int, int | None]] = []
    holder, tokens = segment, trajectory.segments[segment].token_count
    characters: int | None = None
    while tokens > 0:
        prefix = trajectory.segments[holder].prefix
        inherited = min(tokens, 0 if prefix is None else prefix.tokens)
        holders.append((holder, tokens - inherited, characters if tokens > inherited else None))
        if prefix is None:
            break
        characters = prefix.characters if tokens >= prefix.tokens else None
        holder, tokens = prefix.segment, inherited
    return holders[::-1]


def _own(trajectory: Trajectory, numbers: list[int], holder: int, tokens: int, *, shared: bool) -> Iterator[Passage]:
    for number, turn in zip(numbers, trajectory.segments[holder].turns, strict=True):
        if tokens <= 0:
            return
        read = min(tokens, len(turn.context_ids))
        sampled = min(tokens - read, len(turn.token_ids))
        tokens -= read + sampled
        yield Passage(number, holder, turn, read, sampled, shared)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What was read in one context, and what was then sampled."""

    read_text: str
    unknown_tokens: int
    """How many of the tokens read have a text that nobody kept; it stands before ``read_text``."""
    tokens: int
    """All of them, read and sampled."""
    passage: Passage
    """What was sampled."""
    read_results: bool
    """What was read is what came of the calls of the exchange before, and that is the trajectory's record of them."""


def exchanges_of(trajectory: Trajectory, segment: int) -> list[Exchange]:
    """The context of ``segment`` as reading and sampling in turn."""
    exchanges: list[Exchange] = []
    read: list[Passage] = []
    for passage in passages_of(trajectory, segment):
        read.append(passage)
        if passage.sampled_tokens or passage.is_whole:
            exchanges.append(_exchange(trajectory, read, exchanges[-1].passage if exchanges else None))
            read = []
    return exchanges


def _exchange(trajectory: Trajectory, read: list[Passage], before: Passage | None) -> Exchange:
    texts = [passage.read_text for passage in read]
    return Exchange(
        "".join(text for text in texts if text is not None),
        sum(passage.read_tokens for passage, text in zip(read, texts, strict=True) if text is None),
        sum(passage.token_count for passage in read),
        read[-1],
        before is not None and _answers(trajectory, read, before),
    )


def _answers(trajectory: Trajectory, read: list[Passage], before: Passage) -> bool:
    """A context that was written again may say other things about a call than its record."""
    follows = len(read) == 1 and read[0].segment == before.segment and before.is_whole
    return follows and bool(before.turn.tool_calls) and results_are_known(trajectory, before.turn)


def results_are_known(trajectory: Trajectory, turn: Turn) -> bool:
    """An agent makes its calls itself; where it reported nothing back, nobody knows what came of them.  Where results
    were trimmed or added to, their record is not what was read."""
    if trajectory.context is not None and trajectory.context.changes_results:
        return False
    return trajectory.agent is None or all(call.output for call in turn.tool_calls)
