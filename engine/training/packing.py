"""Several samples in one row, none of which sees another.

A packed row is a sample itself: its columns are those of its parts in a row, and ``positions`` begins anew with each.
A network reads from it where a part begins: position ids restart, and attention never crosses.  So every token has the
log-prob that it has alone, and a loss that is a sum over tokens is the same sum.

What counts trajectories by rows (a mean per sequence, segments of one trajectory) cannot be packed and is refused.
"""

from collections.abc import Sequence

import numpy as np

from engine.training.batch import Sample


def packed(samples: Sequence[Sample], *, row_tokens: int) -> list[Sample]:
    """The samples in as few rows of at most ``row_tokens`` as first fit decreasing finds; ties in their given order.

    Tokens after a sample's last learned one are left off, and samples without a learned token left out.  A sample that
    is longer than a row stands alone.  Raises ValueError for samples that are segments of one trajectory.
    """
    lengths = [sample.learned_length for sample in samples]
    rows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(filter(lengths.__getitem__, range(len(samples))), key=lambda i: -lengths[i]):
        row = next((place for place, left in enumerate(room) if lengths[number] <= left), None)
        if row is None:
            rows.append([])
            room.append(row_tokens)
            row = len(rows) - 1
        rows[row].append(number)
        room[row] -= lengths[number]
    return [row_of([samples[number] for number in row]) for row in rows]


def row_of(samples: Sequence[Sample]) -> Sample:
    """One row of all that is learned of the samples, in their order.  Raises ValueError as ``packed`` does."""
    if any(sample.trained_tokens is not None or sample.imitated_tokens is not None for sample in samples):
        raise ValueError("segments of one trajectory cannot be packed: the loss counts their tokens together")
    if any(sample.positions is not None for sample in samples):
        raise ValueError("a packed row cannot be packed again")
    if any(sample.unscored is not None for sample in samples):
        raise ValueError("samples that are still to be scored cannot be packed: each is scored as a row of its own")
    lengths = [sample.learned_length for sample in samples]

    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(sample, name)[:n] for sample, n in zip(samples, lengths, strict=True)])

    def optional(name: str) -> np.ndarray | None:
        """None where no part has it."""
        held = [getattr(sample, name) for sample in samples]
        known = [values for values in held if values is not None]
        if not known:
            return None
        neutral = name == "kept"
        parts = [
            np.full(n, neutral, dtype=known[0].dtype) if values is None else values[:n]
            for values, n in zip(held, lengths, strict=True)
        ]
        return np.concatenate(parts)

    return Sample(
        token_ids=column("token_ids"),
        loss_mask=column("loss_mask"),
        advantages=column("advantages"),
        rollout_logprobs=column("rollout_logprobs"),
        old_logprobs=column("old_logprobs"),
        expert=optional("expert"),
        boosted=optional("boosted"),
        kept=optional("kept"),
        penalised=optional("penalised"),
        values=optional("values"),
        returns=optional("returns"),
        positions=np.concatenate([np.arange(n, dtype=np.int64) for n in lengths]),
    )
