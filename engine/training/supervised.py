"""What the supervised stage learns: which demonstrations in which step, and which turns of them.

ALE, eq. 1 and 2: m_k = not Err(k) and Rel(k), the rules being those of algorithms/turn_masks.py.  What is not
learned is marked on the trajectory, on the turn and as a ``turn-masked`` change.
"""

import numpy as np

from engine.algorithms.turn_masks import TurnRecord, turn_mask_reasons
from engine.spec.supervised import ColdStart
from engine.spec.trajectory import Change, Trajectory, Turn


def batch_of_step(count: int, step: int, *, size: int, seed: int) -> list[int]:
    """Which of ``count`` demonstrations step ``step`` learns.

    Epoch after epoch of full batches, each epoch in its own order drawn from (seed, epoch).
    """
    size = min(size, count)
    epoch, part = divmod(step, count // size)
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)
    chosen: list[int] = order[part * size : (part + 1) * size].tolist()
    return chosen


def with_turn_masks(trajectory: Trajectory, cold_start: ColdStart) -> Trajectory:
    """The very trajectory where both switches are off or nothing is masked."""
    if not (cold_start.mask_errors or cold_start.mask_irrelevant):
        return trajectory
    reasons = turn_mask_reasons(
        [_record(turn) for turn in trajectory.turns],
        errors=cold_start.mask_errors,
        relevance=cold_start.mask_irrelevant,
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
    return trajectory.model_copy(update={"turns": turns, "changes": [*trajectory.changes, *changes]})


def _record(turn: Turn) -> TurnRecord:
    call = turn.tool_call
    if call is None:
        return TurnRecord(call=None)
    return TurnRecord(call=f"{call.name} {call.arguments}", output=call.output, failed=call.status == "error")
