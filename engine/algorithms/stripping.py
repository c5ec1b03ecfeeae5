"""Taking spans out of a sequence, and nothing else.  Plain lists: no torch.

AgentEvolver, section 4.3.  What becomes of the loss then stands in experience.py.
"""

from collections.abc import Sequence
from typing import TypeVar

Entry = TypeVar("Entry")


def stripped(entries: Sequence[Entry], spans: Sequence[tuple[int, int]]) -> list[Entry]:
    """``entries`` (token ids, or any column aligned with them) without the half-open ``spans``.

    {system}{experience}{query}{trajectory} becomes {system}{query}{trajectory}; nothing is tokenised again.
    Raises ValueError where the spans overlap, go backwards or leave the sequence.
    """
    kept: list[Entry] = []
    at = 0
    for start, end in spans:
        if not at <= start <= end <= len(entries):
            raise ValueError(f"span ({start}, {end}) overlaps, goes backwards or leaves the sequence")
        kept.extend(entries[at:start])
        at = end
    kept.extend(entries[at:])
    return kept
