"""Dr.BoT's masks: which trajectories are not trained on.  Plain facts in, a reason out: no torch.

SPEAR, appendix A.8.  A masked trajectory still counts in the statistics of its group.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MaskReason = Literal["overlong", "incomplete", "void-turn", "repetitive", "unreadable"]


@dataclass(frozen=True)
class TurnFacts:
    called_tool: bool
    answered: bool


@dataclass(frozen=True)
class SampleFacts:
    token_ids: Sequence[int]
    """They stand as sampled, all turns in a row."""
    text: str
    """What the sampled tokens say."""
    turns: Sequence[TurnFacts]
    cut_short: bool
    """The episode ended without an answer because turns or context ran out."""


def mask_reason(
    facts: SampleFacts,
    *,
    max_response_tokens: int,
    switched_on: frozenset[MaskReason] = frozenset(("overlong", "incomplete", "void-turn", "repetitive", "unreadable")),
) -> MaskReason | None:
    """The first reason, in the order of ``MaskReason``, not to train on it; None where there is none."""
    found: dict[MaskReason, bool] = {
        "overlong": "overlong" in switched_on and len(facts.token_ids) > max_response_tokens,
        "incomplete": "incomplete" in switched_on and facts.cut_short,
        "void-turn": "void-turn" in switched_on and has_void_turn(facts.turns),
        "repetitive": "repetitive" in switched_on and is_repetitive(facts.token_ids),
        "unreadable": "unreadable" in switched_on and is_unreadable(facts.text),
    }
    return next((reason for reason, applies in found.items() if applies), None)


def has_void_turn(turns: Sequence[TurnFacts]) -> bool:
    """A turn that neither calls a tool nor answers, or no tool call in the whole response."""
    return any(not turn.called_tool and not turn.answered for turn in turns) or not any(
        turn.called_tool for turn in turns
    )


def is_repetitive(token_ids: Sequence[int], *, gram: int = 20, times: int = 10) -> bool:
    """Some ``gram`` tokens in a row stand at ``times`` places or more; places may overlap."""
    starts = len(token_ids) - gram + 1
    if starts < times:
        return False
    return max(Counter(tuple(token_ids[at : at + gram]) for at in range(starts)).values()) >= times


def is_unreadable(text: str, *, max_share: float = 0.05) -> bool:
    """More than ``max_share`` of the characters are U+FFFD, control, private-use or unassigned ones.

    The paper speaks of "nonsensical tokens" and defines none.  Newline, return and tab are no control
    characters here.
    """
    unreadable = sum(
        char == "\ufffd" or (char not in "\n\r\t" and unicodedata.category(char) in ("Cc", "Cn", "Co", "Cs"))
        for char in text
    )
    return unreadable > max_share * len(text)
