"""What was changed about a trajectory, said for a reader: badges, differences and a summary.

Models and tools wrote most of the texts in here; templates escape them like any other.
"""

import difflib
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from engine.spec.trajectory import Change, Trajectory, Turn

Tone = Literal["good", "bad", "warn", ""]
MOST_PAIRS = 16_000
"""The most pairs of words, or else of lines, that are compared with each other: comparing takes quadratic time, and
cubic where a text repeats itself.  Beyond that texts are shown whole, one after the other."""


@dataclass(frozen=True)
class Badge:
    text: str
    tone: Tone = ""
    why: str = ""
    """Shown on hover."""


@dataclass(frozen=True)
class Piece:
    kind: Literal["same", "gone", "new"]
    text: str


@dataclass(frozen=True)
class ShownChange:
    title: str
    change: Change
    pieces: list[Piece]
    """From before to after; empty where there is no text to compare."""

    @property
    def facts(self) -> list[tuple[str, str]]:
        hidden = ("first_output", "refusal")
        return [(name.replace("_", " "), _short(value)) for name, value in self.change.details.items()
                if name not in hidden]  # fmt: skip

    @property
    def first_output(self) -> str:
        """Return what the tool answered to the call that is gone."""
        return str(self.change.details.get("first_output", ""))


@dataclass(frozen=True)
class ShownTurn:
    """The badges and changes of one turn, and where its context holds experience."""

    badges: list[Badge] = field(default_factory=list)
    changes: list[ShownChange] = field(default_factory=list)


def shown_turn(trajectory: Trajectory, number: int) -> ShownTurn:
    turn = trajectory.turns[number]
    changes = [change for change in trajectory.changes if change.turn == number]
    badges = [badge for change in changes if (badge := _badge_of_change(change))]
    shown = [_shown(change) for change in changes if change.kind in _TITLES]
    worth_showing = [entry for entry in shown if entry.facts or entry.pieces or entry.first_output]
    return ShownTurn([*badges, *_badges_of_turn(trajectory, turn)], worth_showing)


def summary_of(trajectory: Trajectory) -> list[str]:
    """Say in short sentences what was changed; empty where nothing was."""
    turns, changes = trajectory.turns, Counter(change.kind for change in trajectory.changes)
    masked = Counter(turn.masked_because for turn in turns if turn.masked_because)
    sentences = [f"too long to be stored whole: {trajectory.left_out} left out"] if trajectory.left_out else []
    if trajectory.masked_because:
        sentences.append(f"not trained on: {trajectory.masked_because}")
    if repaired := changes["purified"]:
        sentences.append(f"{_count(repaired, 'call')} repaired")
    if failed := changes["purification-failed"]:
        sentences.append(f"{_count(failed, 'repair')} failed")
    if cut := sum(change.stop - change.start for change in trajectory.changes if change.kind == "mismatch-masked"):
        sentences.append(f"{_count(cut, 'token')} masked: mismatch of sampling and training")
    if masked:
        sentences.append(f"{_count(masked.total(), 'turn')} masked: {', '.join(sorted(masked))}")
    if trajectory.start and trajectory.start.prefix:
        sentences.append(f"{trajectory.start.prefix} of an expert's {_count(trajectory.start.turns, 'turn')} replayed")
    if any(turn.experience_span for turn in turns):
        sentences.append("experience shown, and taken out of training" if changes["stripped"] else "experience shown")
    for change in trajectory.changes:
        if change.kind == "resampled":
            sentences.append(
                f"played in place of {_count(int(change.details.get('tries', 1)), 'rollout')}: {change.reason}"
            )
    return sentences


EXPERIENCE_BEGIN = "<EXP>"


def experience_in(turn: Turn, question: str) -> tuple[str, str, str] | None:
    """The context's text before, inside and after the experience; None without any.

    The span counts tokens, whose texts are not kept.  But experience stands between their mark and the question, which
    comes last; where it cannot be found, everything counts as experience.
    """
    if turn.experience_span is None:
        return None
    text = turn.context_text
    begin, end = text.find(EXPERIENCE_BEGIN), text.rfind(question)
    return (text[:begin], text[begin:end], text[end:]) if 0 <= begin < end else ("", text, "")


_TITLES = {
    "purified": "The call was replaced by its correction",
    "purification-failed": "No correction worked",
    "stripped": "Experience was taken out of training",
    "turn-masked": "This turn is not learned",
    "mismatch-masked": "Tokens that the trainer finds far likelier are not learned",
    "resampled": "Played in place of another rollout",
}


def _shown(change: Change) -> ShownChange:
    has_texts = bool(change.before or change.after)
    return ShownChange(_TITLES[change.kind], change, difference(change.before, change.after) if has_texts else [])


def difference(before: str, after: str) -> list[Piece]:
    """Word by word, else line by line.  Pieces that are not new make ``before``; those that are not gone, ``after``."""
    for parts_of in (_words, _lines):
        if (pieces := _compared(parts_of(before), parts_of(after))) is not None:
            return pieces
    return [Piece("gone", before), Piece("new", after)]


def _compared(old: list[str], new: list[str]) -> list[Piece] | None:
    """None where too much differs."""
    begins = _common(old, new)
    ends = _common(old[begins:][::-1], new[begins:][::-1])
    old_rest, new_rest = old[begins : len(old) - ends], new[begins : len(new) - ends]
    if len(old_rest) * len(new_rest) > MOST_PAIRS:
        return None
    pieces = [Piece("same", "".join(old[:begins]))] * (begins > 0)
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old_rest, new_rest, autojunk=False).get_opcodes():
        if tag == "equal":
            pieces.append(Piece("same", "".join(old_rest[a:b])))
            continue
        pieces += [Piece("gone", "".join(old_rest[a:b]))] * (a < b) + [Piece("new", "".join(new_rest[c:d]))] * (c < d)
    return pieces + [Piece("same", "".join(old[len(old) - ends :]))] * (ends > 0)


def _common(left: list[str], right: list[str]) -> int:
    differing = (place for place, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(left), len(right)))


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+|\s+|[^\w\s]", text)


def _badge_of_change(change: Change) -> Badge | None:
    details = change.details
    match change.kind:
        case "purified":
            attempts = _count(details["attempts"], "attempt") if "attempts" in details else ""
            parts = [f"repaired, {change.reason}", attempts, str(details.get("error_class", ""))]
            similarity = f"similarity {_short(details['similarity'])}" if "similarity" in details else ""
            return Badge(" · ".join(filter(None, parts)), "good", similarity)
        case "purification-failed":
            return Badge(f"repair failed: {change.reason}", "bad", str(details.get("refusal", "")))
        case "stripped":
            return Badge("experience stripped", "", change.reason)
        case "mismatch-masked":
            return Badge(f"tokens {change.start} to {change.stop - 1} not learned", "warn", change.reason)
        case "resampled":
            return Badge("resampled", "", change.reason)
    return None


def _badges_of_turn(trajectory: Trajectory, turn: Turn) -> list[Badge]:
    badges = []
    if turn.prefilled:
        learned = "imitated" if turn.imitated else "not learned"
        expert = trajectory.start.expert if trajectory.start else ""
        badges.append(Badge(f"replayed from an expert, {learned}", "warn", expert))
    if turn.masked_because:
        badges.append(Badge(f"not learned: {turn.masked_because}", "warn"))
    if turn.verdict:
        badges.append(Badge(f"judge: {turn.verdict}", "good" if turn.verdict == "good" else "bad"))
    return badges


def _count(number: object, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
