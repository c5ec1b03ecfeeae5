"""What changed between the context that a segment leaves and the one that it begins.

Both have the shared prefix; compared is what stood behind it in the earlier segment when the new one began, and what
was read in its place.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.spec.branches import Passage, passages_of
from engine.spec.trajectory import Trajectory
from webapp.trajectories.changes import Piece, difference

MOST_COMPARED = 100_000
"""Characters on one page."""


@dataclass(frozen=True)
class Rewrite:
    pieces: list[Piece] | None
    """None where the page has compared enough already."""


def rewrites_of(trajectory: Trajectory) -> dict[int, Rewrite]:
    """By the number of the segment; not there are those that share nothing, or of which the letters are unknown."""
    found, left = {}, MOST_COMPARED
    for number, segment in enumerate(trajectory.segments):
        before = None if segment.prefix is None else _text_left(trajectory, number)
        if before is None:
            continue
        after = segment.turns[0].context_text
        left -= len(before) + len(after)
        found[number] = Rewrite(difference(before, after) if left >= 0 else None)
    return found


def _text_left(trajectory: Trajectory, number: int) -> str | None:
    """What the segment does not share of the context that it leaves, in order of time; None where it is unknown."""
    prefix = trajectory.segments[number].prefix
    assert prefix is not None, "the caller asks for segments that leave another"
    began = trajectory.turn_numbers[number][0]
    texts, shared = list[str | None](), prefix.tokens
    for passage in passages_of(trajectory, prefix.segment):
        if passage.number < began:
            texts += _behind(passage, shared, prefix.characters)
        shared = max(0, shared - passage.token_count)
    return None if None in texts else "".join(text for text in texts if text)


def _behind(passage: Passage, shared: int, characters: int | None) -> Iterator[str | None]:
    """Its texts but for the first ``shared`` tokens."""
    read = passage.read_text
    if 0 < shared < passage.read_tokens:
        yield None if read is None or characters is None else read[characters:]
    elif shared == 0:
        yield read
    yield "".join(passage.turn.pieces[max(0, shared - passage.read_tokens) : passage.sampled_tokens])
