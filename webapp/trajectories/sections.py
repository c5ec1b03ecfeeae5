"""A trajectory as its page shows it: a section for each segment, and in it turn after turn.

What a segment shares with an earlier one is told in whole turns and pieces of what the policy wrote: of a context that
is shared in part only, nobody kept which letters its tokens are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.spec.trajectory import Segment, Trajectory, Turn
from webapp.security.turns import Watched
from webapp.trajectories import shades
from webapp.trajectories.changes import ShownTurn, experience_in, shown_turn


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


@dataclass(frozen=True)
class Section:
    """A segment."""

    number: int
    """From 1 on."""
    segment: Segment
    turns: list[TurnOnPage]
    shared: list[SharedText]

    @property
    def begins_like(self) -> int | None:
        """The number of the segment whose beginning it shares."""
        return None if self.segment.prefix is None else self.segment.prefix.segment + 1


def sections_of(trajectory: Trajectory, watched: dict[int, Watched]) -> list[Section]:
    turns = trajectory.turns
    return [
        Section(
            position + 1,
            segment,
            [
                _on_page(trajectory, turns, number, watched.get(number), begins=number == numbers[0])
                for number in numbers
            ],
            _shared_texts(trajectory, segment),
        )
        for position, (segment, numbers) in enumerate(zip(trajectory.segments, trajectory.turn_numbers, strict=True))
    ]


def _on_page(
    trajectory: Trajectory, turns: Sequence[Turn], number: int, watched: Watched | None, *, begins: bool
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
    )


def _shared_texts(trajectory: Trajectory, segment: Segment) -> list[SharedText]:
    if segment.prefix is None:
        return []
    earlier, left = trajectory.segments[segment.prefix.segment], segment.prefix.tokens
    texts: list[SharedText] = []
    if earlier.prefix is not None:
        inherited = min(left, earlier.prefix.tokens)
        nested = earlier.model_copy(update={"prefix": earlier.prefix.model_copy(update={"tokens": inherited})})
        texts, left = _shared_texts(trajectory, nested), left - inherited
    for turn in earlier.turns:
        if left <= 0:
            break
        whole = left >= len(turn.context_ids)
        texts.append(SharedText("Read" if whole else f"The first {left} tokens of", turn.context_text))
        left -= len(turn.context_ids)
        if left > 0:
            texts.append(SharedText("Written", "".join(turn.pieces[:left])))
            left -= len(turn.token_ids)
    return [text for text in texts if text.text]
