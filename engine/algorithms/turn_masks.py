"""Which turns of a recorded trajectory are learned in supervised fine-tuning.  Plain facts, no torch.

m_k = not Err(k) and Rel(k) (ALE, eq. 2).  The paper names what Rel should find (redundant, highly similar
and pruned turns, loops, compression) and gives no rule; the rules below are ours.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

TurnMaskReason = Literal["error", "pruned", "compression", "loop", "redundant", "near-duplicate"]


@dataclass(frozen=True)
class TurnRecord:
    call: str | None
    """The tool call's text, None where the turn made none."""
    output: str = ""
    failed: bool = False
    pruned: bool = False
    """A context manager has taken the turn out of the later context."""
    compression: bool = False
    """The turn summarises the context instead of working on the task."""


def turn_mask_reasons(
    turns: Sequence[TurnRecord],
    *,
    errors: bool = True,
    relevance: bool = True,
    near_duplicate: float = 0.95,
    loop_times: int = 3,
) -> list[TurnMaskReason | None]:
    """Return why turn k is not learned, or None where m_k = 1.  With both switches off every turn is learned."""
    repeats = Counter((turn.call, turn.output) for turn in turns)
    reasons: list[TurnMaskReason | None] = []
    for k, turn in enumerate(turns):
        reason: TurnMaskReason | None = "error" if errors and turn.failed else None
        if reason is None and relevance:
            looping = repeats[turn.call, turn.output] >= loop_times
            reason = _irrelevant_because(turn, turns[:k], looping=looping, near_duplicate=near_duplicate)
        reasons.append(reason)
    return reasons


def _irrelevant_because(
    turn: TurnRecord, before: Sequence[TurnRecord], *, looping: bool, near_duplicate: float
) -> TurnMaskReason | None:
    """In this order: pruned; compression; every turn of a loop, its first too, which leads into it; a call
    that was made before with the same output; a call almost equal to the one right before it, unless that one
    failed: then it is its correction."""
    if turn.pruned:
        return "pruned"
    if turn.compression:
        return "compression"
    if turn.call is None:
        return None
    if looping:
        return "loop"
    if any((earlier.call, earlier.output) == (turn.call, turn.output) for earlier in before):
        return "redundant"
    last = next((earlier for earlier in reversed(before) if earlier.call is not None), None)
    if last is None or last.call is None or last.failed:
        return None
    same = SequenceMatcher(None, last.call, turn.call, autojunk=False).ratio() >= near_duplicate
    return "near-duplicate" if same and last.call != turn.call and last.output == turn.output else None
