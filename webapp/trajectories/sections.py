"""A trajectory as its page shows it: a section for each segment, and in it turn after turn.

What a segment shares with an earlier one is told in turns and pieces of what the policy wrote.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.spec.branches import Passage, passages_of
from engine.spec.trajectory import Segment, Trajectory, Turn
from webapp.security.turns import Watched
from webapp.trajectories import shades
from webapp.trajectories.changes import ShownTurn, experience_in, shown_turn
from webapp.trajectories.outline import CallCost, costs_of
from webapp.trajectories.rewrites import Rewrite, rewrites_of


@dataclass(frozen=True)
class SharedText:
    """A piece of the beginning that a segment has in common with an earlier one."""

    label: str
    text: str


@dataclass(frozen=True)
class TurnOnPage:
    number: int
    """Counted over the trajectory, from 1 on."""
    turn: Turn
    label: str
    """Who says what the policy read before it."""
    tokens: list[shades.Token]
    shown: ShownTurn
    experience: tuple[str, str, str] | None
    watched: Watched | None
    cost: CallCost


@dataclass(frozen=True)
class Section:
    """A segment."""

    number: int
    """From 1 on."""
    segment: Segment
    turns: list[TurnOnPage]
    shared: list[SharedText]
    rewrite: Rewrite | None
    """What changed against the context that it leaves, where that is known."""

    @property
    def begins_like(self) -> int | None:
        """The number of the segment whose beginning it shares."""
        return None if self.segment.prefix is None else self.segment.prefix.segment + 1


def sections_of(trajectory: Trajectory, watched: dict[int, Watched]) -> list[Section]:
    turns, costs, rewrites = trajectory.turns, costs_of(trajectory), rewrites_of(trajectory)
    return [
        Section(
            position + 1,
            segment,
            [
                _on_page(trajectory, turns, number, watched.get(number), costs[number], begins=number == numbers[0])
                for number in numbers
            ],
            _shared_texts(trajectory, position),
            rewrites.get(position),
        )
        for position, (segment, numbers) in enumerate(zip(trajectory.segments, trajectory.turn_numbers, strict=True))
    ]


def _on_page(
    trajectory: Trajectory,
    turns: Sequence[Turn],
    number: int,
    watched: Watched | None,
    cost: CallCost,
    *,
    begins: bool,
) -> TurnOnPage:
    turn = turns[number]
    if begins:
        label = "Prompt" if number == 0 else "Context"
    else:
        label = "Tool said" if turns[number - 1].tool_calls else "Environment said"
    return TurnOnPage(
        number + 1,
        turn,
        label,
        shades.tokens_of(turn),
        shown_turn(trajectory, number),
        experience_in(turn, trajectory.task.question),
        watched,
        cost,
    )


def _shared_texts(trajectory: Trajectory, number: int) -> list[SharedText]:
    shared = [passage for passage in passages_of(trajectory, number) if passage.shared]
    return [text for passage in shared for text in _texts(passage) if text.text]


def _texts(passage: Passage) -> Iterator[SharedText]:
    known = passage.read_text
    if known is None:
        yield SharedText(f"The first {passage.read_tokens} tokens of", passage.turn.context_text)
    else:
        yield SharedText("Read", known)
    yield SharedText("Written", passage.sampled_text)
