"""Schedules say what changes over the updates of a run: factors of the peak learning rate, and weight decay."""

import math
from typing import Literal

Decay = Literal["cosine", "linear", "constant"]


def linear_warmup(update: int, warmup_updates: int) -> float:
    """Rises in equal parts over the first ``warmup_updates`` updates (counted from 0), then stays 1."""
    return min(1.0, (update + 1) / warmup_updates) if warmup_updates > 0 else 1.0


def linear_between(first: float, last: float, *, step: int, steps: int) -> float:
    """Return ``first`` in step 0, ``last`` from step ``steps - 1`` on, and a straight line between.

    Of a single step it is ``first``.
    """
    return first + (last - first) * min(1.0, step / max(1, steps - 1))


def warmup_then_decay(
    update: int, total_updates: int, *, warmup_updates: int, floor: float, shape: Decay = "cosine"
) -> float:
    """A linear warm-up, then half a cosine or a line from 1 down to ``floor`` at the last update; or 1 for ever."""
    if update < warmup_updates:
        return linear_warmup(update, warmup_updates)
    progress = (update - warmup_updates) / max(1, total_updates - 1 - warmup_updates)
    match shape:
        case "cosine":
            return floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, progress))) / 2
        case "linear":
            return floor + (1 - floor) * (1 - min(1.0, progress))
        case "constant":
            return 1.0
