"""Which rollouts teach so little that another is played in their place (ALE: dynamic trajectory filtering).

The other one has the same start and other draws.  Playing it is the worker's business.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from engine.spec.selection import Resampling
from engine.spec.trajectory import Change, Trajectory

Barren = Literal["repeated-errors", "lost", "environment-lost"]
"""Failed tool calls in a row; no trajectory at all, because its sandbox was lost, or the process of its environment."""


def barren(trajectory: Trajectory, resampling: Resampling) -> Barren | None:
    """Return why it should be replaced, or None.  An expert's calls, which it did not make, do not count."""
    failed = [
        is_failed
        for turn in trajectory.turns
        if not turn.prefilled
        for is_failed in ([call.failed for call in turn.tool_calls] or [False])
    ]
    longest = max((len(list(run)) for is_failed, run in groupby(failed) if is_failed), default=0)
    limit = resampling.repeated_errors
    return "repeated-errors" if limit is not None and longest >= limit else None


def marked(trajectory: Trajectory, reasons: Sequence[Barren]) -> Trajectory:
    """The trajectory with a change that tells of the rollouts in whose place it stands, if there were any."""
    if not reasons:
        return trajectory
    change = Change(
        kind="resampled",
        turn=0,
        start=0,
        stop=0,
        reason=reasons[-1],
        details={"tries": len(reasons), **Counter(reasons)},
    )
    return trajectory.model_copy(update={"changes": [change, *trajectory.changes]})
