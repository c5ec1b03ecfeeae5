"""What a supervised stage learns: which examples in which step, and which turns of a trajectory.

ALE, eq. 1 and 2: m_k = not Err(k) and Rel(k), the rules being those of algorithms/turn_masks.py.  What is not
learned is marked on the trajectory, on the turn and as a ``turn-masked`` change.
"""

import numpy as np

from engine.algorithms.turn_masks import TurnRecord, turn_mask_reasons
from engine.spec.supervised import Stage
from engine.spec.trajectory import Change, Trajectory, Turn


def batch_of_step(count: int, step: int, *, size: int, seed: int) -> list[int]:
    """Return which of ``count`` examples step ``step`` learns.

    Epoch after epoch of full batches, each epoch in its own order drawn from (seed, epoch).
    """
    size = min(size, count)
    epoch, part = divmod(step, count // size)
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)
    chosen: list[int] = order[part * size : (part + 1) * size].tolist()
    return chosen


def with_turn_masks(trajectory: Trajectory, stage: Stage) -> Trajectory:
    """The very trajectory where both switches are off or nothing is masked."""
    if not (stage.mask_errors or stage.mask_irrelevant):
        return trajectory
    reasons = turn_mask_reasons(
        [_record(turn) for turn in trajectory.turns],
        errors=stage.mask_errors,
        relevance=stage.mask_irrelevant,
    )
    if not any(reasons):
        return trajectory
    turns = [
        turn.model_copy(update={"masked_because": reason}) if reason else turn
        for turn, reason in zip(trajectory.turns, reasons, strict=True)
    ]
    changes = [
        Change(kind="turn-masked", turn=number, start=0, stop=len(turns[number].token_ids), reason=reason)
        for number, reason in enumerate(reasons)
        if reason
    ]
    return trajectory.with_turns(turns).model_copy(update={"changes": [*trajectory.changes, *changes]})


def _record(turn: Turn) -> TurnRecord:
    """A turn of several calls failed if one of them did."""
    calls = turn.tool_calls
    return TurnRecord(
        call="\n".join(f"{call.name} {call.text}" for call in calls) if calls else None,
        output="\n".join(call.output for call in calls),
        failed=turn.failed_calls > 0,
    )
