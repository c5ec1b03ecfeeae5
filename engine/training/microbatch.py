"""Cutting samples into padded micro-batches, the same way every time.  Shapes: B sequences, T tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.training.batch import Sample

MICROBATCH_TOKENS = 2048
"""Padded tokens per micro-batch, at most.  Activations of small models then stay near the caches."""


@dataclass(frozen=True)
class MicroBatch:
    rows: list[int]
    """Which of the samples, in the order of the rows."""
    token_ids_BT: Tensor
    mask_BT: Tensor
    advantages_BT: Tensor
    rollout_logp_BT: Tensor
    old_logp_BT: Tensor


def microbatches(samples: Sequence[Sample], *, device: torch.device, max_tokens: int) -> list[MicroBatch]:
    """Samples sorted by length (ties in their given order), cut so that none exceeds ``max_tokens``, padding included.

    A sample that is longer than that stands alone.  The gradient does not depend on the cut: losses are sums.
    Tokens after the last learned one are left off, and samples without a learned token left out.
    """
    lengths = [sample.learned_length for sample in samples]
    batches: list[list[int]] = []
    for i in sorted(filter(lengths.__getitem__, range(len(samples))), key=lengths.__getitem__):
        if batches and (len(batches[-1]) + 1) * lengths[i] <= max_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return [_padded(rows, samples, lengths[rows[-1]], device) for rows in batches]


def _padded(rows: list[int], samples: Sequence[Sample], length: int, device: torch.device) -> MicroBatch:
    def stacked(name: str) -> Tensor:
        columns = [getattr(samples[i], name)[:length] for i in rows]
        padded = np.zeros((len(rows), length), dtype=columns[0].dtype)
        for row, column in zip(padded, columns, strict=True):
            row[: len(column)] = column
        return torch.from_numpy(padded).to(device)

    names = ("token_ids", "loss_mask", "advantages", "rollout_logprobs", "old_logprobs")
    return MicroBatch(rows, *map(stacked, names))
