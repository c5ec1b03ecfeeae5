"""The form of a policy_session in token ids, and the strict reading of what a policy wrote.

    <bos> <user> question <assistant>                       the prompt
    <tool> code </tool>                                     a turn that calls the tool (sampled)
    <output> text </output> <assistant>                     what the tool answered
    <answer> text </answer>                                 a turn that ends the episode (sampled)

Text comes in through ``Tokenizer.encode``, which knows no marks: neither a question nor a tool's
output can close its own frame or open another.  Lessons of earlier episodes stand between <user>
and the question, as plain text between ``<EXP>`` and ``</EXP>``, which are characters and no marks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Call:
    """The policy wants ``code`` run."""

    code: str
    at: int = field(default=0, compare=False)
    """Where in the turn's tokens the opening mark stands; before it there is reasoning only."""
    reasoning: str = field(default="", compare=False)
    """What a demonstrator writes before the mark; ``parse_turn`` leaves it empty."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The policy is done."""

    text: str
    at: int = field(default=0, compare=False)
    """As in ``Call``."""
    reasoning: str = field(default="", compare=False)
    """As in ``Call``."""


def stop_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """A turn ends at the first of these."""
    return frozenset({tokenizer.tool_close, tokenizer.answer_close, tokenizer.eos})


def prompt_ids(tokenizer: Tokenizer, question: str, lessons: Sequence[str] = ()) -> list[int]:
    told = _experience_ids(tokenizer, lessons)
    return [tokenizer.bos, tokenizer.user, *told, *tokenizer.encode(question), tokenizer.assistant]


def experience_span(tokenizer: Tokenizer, lessons: Sequence[str]) -> tuple[int, int]:
    """Where ``prompt_ids`` holds the lessons, half open."""
    before = len((tokenizer.bos, tokenizer.user))
    return before, before + len(_experience_ids(tokenizer, lessons))


def _experience_ids(tokenizer: Tokenizer, lessons: Sequence[str]) -> list[int]:
    return tokenizer.encode("<EXP>" + "\n".join(lessons) + "</EXP>\n") if lessons else []


def observation_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return [tokenizer.output_open, *tokenizer.encode(text), tokenizer.output_close, tokenizer.assistant]


def turn_ids(tokenizer: Tokenizer, turn: Call | Answer) -> list[int]:
    """What a policy that means ``turn`` writes.  The inverse of ``parse_turn``."""
    before = tokenizer.encode(turn.reasoning)
    match turn:
        case Call(code):
            return [*before, tokenizer.tool_open, *tokenizer.encode(code), tokenizer.tool_close]
        case Answer(text):
            return [*before, tokenizer.answer_open, *tokenizer.encode(text), tokenizer.answer_close]


def parse_turn(tokenizer: Tokenizer, token_ids: Sequence[int], *, reasoning: bool = False) -> Call | Answer | None:
    """Exactly one frame around plain characters, or None.

    Anything before the opening mark, any mark inside, a missing or a wrong closing mark: None.
    With ``reasoning``, plain characters before the opening mark are allowed.
    Nothing is repaired, so that the policy is only paid for what it really wrote.
    """
    at = _first_mark(tokenizer, token_ids) if reasoning else 0
    frame = token_ids[at:]
    if len(frame) < 2 or any(tokenizer.is_mark(token) for token in frame[1:-1]):
        return None
    text = tokenizer.decode(frame[1:-1])
    match frame[0], frame[-1]:
        case tokenizer.tool_open, tokenizer.tool_close:
            return Call(text, at)
        case tokenizer.answer_open, tokenizer.answer_close:
            return Answer(text, at)
        case _:
            return None


def _first_mark(tokenizer: Tokenizer, token_ids: Sequence[int]) -> int:
    """Its place; the end where there is none."""
    return next((at for at, token in enumerate(token_ids) if tokenizer.is_mark(token)), len(token_ids))
