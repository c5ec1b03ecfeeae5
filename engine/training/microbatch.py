"""Cutting samples into padded micro-batches, the same way every time.  Shapes: B sequences, T tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.spec.run import RunSpec
from engine.training.batch import Sample

T = TypeVar("T")

MICROBATCH_TOKENS = 2048
"""Padded tokens per micro-batch, at most.  Activations of small models then stay near the caches."""

COLUMNS = (
    "token_ids", "loss_mask", "advantages", "rollout_logprobs", "old_logprobs",
    "expert", "boosted", "kept", "penalised", "values", "returns",
)  # fmt: skip
"""Of a sample, in the order of the fields of a micro-batch."""


@dataclass(frozen=True)
class MicroBatch:
    rows: list[int]
    """Which of the samples, in the order of the rows."""
    token_ids_BT: Tensor
    mask_BT: Tensor
    advantages_BT: Tensor
    rollout_logp_BT: Tensor
    old_logp_BT: Tensor
    expert_BT: Tensor | None = None
    """This and the next ones are None where no sample has the column."""
    boosted_BT: Tensor | None = None
    kept_BT: Tensor | None = None
    penalised_BT: Tensor | None = None
    values_BT: Tensor | None = None
    returns_BT: Tensor | None = None

    @property
    def scored_BT(self) -> Tensor:
        """The tokens whose log-prob is computed."""
        return self.mask_BT if self.expert_BT is None else self.mask_BT | self.expert_BT


class Cut:
    """How the samples of a step become minibatches, one per optimiser update, and those become micro-batches."""

    def __init__(self, spec: RunSpec) -> None:
        self._minibatch = spec.schedule.minibatch_trajectories
        self._context = spec.model.context_tokens
        self.device = torch.device(spec.resources.device)

    def minibatches(self, samples: Sequence[T]) -> list[Sequence[T]]:
        """In the order of the samples.  Also of whatever else has one entry per trajectory."""
        return [samples[start : start + self._minibatch] for start in range(0, len(samples), self._minibatch)]

    def microbatches(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        """Raises ValueError where a sample does not fit into the context."""
        self.check_length(max((sample.learned_length for sample in samples), default=0))
        return microbatches(samples, device=self.device, max_tokens=MICROBATCH_TOKENS)

    def check_length(self, longest: int) -> None:
        if longest > self._context:
            raise ValueError(f"a sample of {longest} tokens is longer than the context of {self._context}")


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
    return padded(rows, [samples[i] for i in rows], length, device)


def padded(rows: list[int], chosen: Sequence[Sample], length: int, device: torch.device) -> MicroBatch:
    """The first ``length`` tokens of the samples, one row each.  ``rows`` only names them."""

    def stacked(name: str) -> Tensor | None:
        columns = [getattr(sample, name) for sample in chosen]
        if all(column is None for column in columns):
            return None
        dtype = next(column.dtype for column in columns if column is not None)
        filled = np.full((len(chosen), length), name == "kept", dtype=dtype)
        for row, column in zip(filled, columns, strict=True):
            if column is not None:
                row[: len(column)] = column[:length]
        return torch.from_numpy(filled).to(device)

    return MicroBatch(rows, *map(stacked, COLUMNS))  # type: ignore[arg-type]
