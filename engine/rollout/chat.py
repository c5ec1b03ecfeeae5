"""The form of a conversation in token ids, and the strict reading of what a policy wrote.

    <bos> <user> question <assistant>                       the prompt
    <tool> code </tool>                                     a turn that calls the tool (sampled)
    <output> text </output> <assistant>                     what the tool answered
    <answer> text </answer>                                 a turn that ends the episode (sampled)

Text comes in through ``Tokenizer.encode``, which knows no marks: neither a question nor a tool's
output can close its own frame or open another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Call:
    """The policy wants ``code`` run."""

    code: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The policy is done."""

    text: str


def stop_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """A turn ends at the first of these."""
    return frozenset({tokenizer.tool_close, tokenizer.answer_close, tokenizer.eos})


def prompt_ids(tokenizer: Tokenizer, question: str) -> list[int]:
    return [tokenizer.bos, tokenizer.user, *tokenizer.encode(question), tokenizer.assistant]


def observation_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return [tokenizer.output_open, *tokenizer.encode(text), tokenizer.output_close, tokenizer.assistant]


def turn_ids(tokenizer: Tokenizer, turn: Call | Answer) -> list[int]:
    """What a policy that means ``turn`` writes.  The inverse of ``parse_turn``."""
    match turn:
        case Call(code):
            return [tokenizer.tool_open, *tokenizer.encode(code), tokenizer.tool_close]
        case Answer(text):
            return [tokenizer.answer_open, *tokenizer.encode(text), tokenizer.answer_close]


def parse_turn(tokenizer: Tokenizer, token_ids: Sequence[int]) -> Call | Answer | None:
    """Exactly one frame around plain characters, or None.

    Anything before the opening mark, any mark inside, a missing or a wrong closing mark: None.
    Nothing is repaired, so that the policy is only paid for what it really wrote.
    """
    if len(token_ids) < 2 or any(tokenizer.is_mark(token) for token in token_ids[1:-1]):
        return None
    text = tokenizer.decode(token_ids[1:-1])
    match token_ids[0], token_ids[-1]:
        case tokenizer.tool_open, tokenizer.tool_close:
            return Call(text)
        case tokenizer.answer_open, tokenizer.answer_close:
            return Answer(text)
        case _:
            return None
