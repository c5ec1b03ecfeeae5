"""Cutting samples into padded micro-batches, the same way every time.  Shapes: B sequences, T tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.training.batch import Sample
from engine.training.prefix_trees import PrefixTrees, prefix_trees, tree_length, trees_of

T = TypeVar("T")

Entry = Sample | tuple[Sample, ...]
"""A sample, or samples that a loss compares with each other and that therefore stay together."""
Batch = Sequence[Entry]
"""What one loss is taken of.  Its entries hold equally many samples each."""

MICROBATCH_TOKENS = 2048
"""Padded tokens per micro-batch, at most.  Activations of small models then stay near the caches."""

COLUMNS = (
    "token_ids", "loss_mask", "advantages", "rollout_logprobs", "old_logprobs",
    "expert", "boosted", "kept", "penalised", "values", "returns", "positions",
)  # fmt: skip
"""The arrays of a sample, in the order of the fields of a micro-batch."""


@dataclass(frozen=True)
class MicroBatch:
    """Some entries of a batch as padded rows: the first sample of every entry, then the second of every entry, ..."""

    rows: list[int]
    """Which of the entries, in the order of the rows of their first samples.  Empty: nothing of it is learned."""
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
    positions_BT: Tensor | None = None
    """Where each token stands in its own part of its row; a part begins at 0."""
    trained_tokens_B: Tensor | None = None
    """How many tokens the loss learns in the whole trajectory of a row, of which the row may be one segment.  None:
    every row is a whole trajectory."""
    imitated_tokens_B: Tensor | None = None
    """The same for the tokens that are imitated."""
    unscored: list[int] | None = None
    """The numbers of the samples of the rows (``Sample.unscored``), where ``old_logp_BT`` means nothing; None where it
    holds the old log-probs."""
    trees: PrefixTrees | None = None
    """How the hidden states of the rows are computed where beginnings are shared; None: row by row."""

    @property
    def scored_BT(self) -> Tensor:
        """The tokens whose log-prob is computed."""
        return self.mask_BT if self.expert_BT is None else self.mask_BT | self.expert_BT


def minibatches(entries: Sequence[T], size: int) -> list[Sequence[T]]:
    """The entries in their order, ``size`` to each optimiser update and what is left to the last.

    Samples are counted by trajectory: all segments of one are learned in the same update.
    """
    openings = [place for place, entry in enumerate(entries) if not isinstance(entry, Sample) or entry.opens][::size]
    return [entries[start:stop] for start, stop in zip(openings, [*openings[1:], len(entries)], strict=False)]


def microbatches(
    batch: Batch, *, device: torch.device, max_tokens: int, even_attention: float | None = None
) -> list[MicroBatch]:
    """Entries sorted by length (ties in their given order), cut so that none exceeds ``max_tokens``, padding included.

    An entry that is longer than that stands alone.  The gradient does not depend on the cut: losses are sums.
    Tokens after the last learned one are left off, and entries without a learned token left out.  With
    ``even_attention`` (the tokens of a row at which attention costs as much as all else) samples that begin alike stand
    together where that is worth it, and what counts is what is computed; samples that a loss compares, and packed ones,
    never share.
    """
    if even_attention is not None and (samples := _sharing(batch)):
        trees = trees_of(samples, max_tokens=max_tokens, even_attention=even_attention)
        if any(len(tree) > 1 for tree in trees):
            return _of_trees(samples, trees, device, max_tokens)
    lengths = [learned_length(entry) for entry in batch]
    cuts: list[list[int]] = []
    for i in sorted(filter(lengths.__getitem__, range(len(batch))), key=lengths.__getitem__):
        if cuts and (len(cuts[-1]) + 1) * len(samples_of(batch[i])) * lengths[i] <= max_tokens:
            cuts[-1].append(i)
        else:
            cuts.append([i])
    return [_padded(rows, [batch[i] for i in rows], lengths[rows[-1]], device) for rows in cuts]


def _sharing(batch: Batch) -> list[Sample]:
    """The entries where each is a sample that may share its beginning; nothing where one may not."""
    samples = [entry for entry in batch if isinstance(entry, Sample) and entry.positions is None]
    return samples if len(samples) == len(batch) else []


def _of_trees(samples: list[Sample], trees: list[list[int]], device: torch.device, max_tokens: int) -> list[MicroBatch]:
    cuts: list[list[list[int]]] = []
    for tree in trees:
        if cuts and (len(cuts[-1]) + 1) * tree_length([samples[i] for i in tree]) <= max_tokens:
            cuts[-1].append(tree)
        else:
            cuts.append([tree])
    made = []
    for cut in cuts:
        rows = [i for tree in cut for i in tree]
        length = max(samples[i].learned_length for i in rows)
        shared = prefix_trees([[samples[i] for i in tree] for tree in cut], length, device)
        made.append(replace(_padded(rows, [samples[i] for i in rows], length, device), trees=shared))
    return made


def without_rows(device: torch.device) -> MicroBatch:
    """A row of two tokens that is no entry's: what a rank computes while others have more than it."""
    numbers_BT = torch.zeros(1, 2, device=device)
    ids_BT, mask_BT = numbers_BT.long(), torch.tensor([[False, True]], device=device)
    return MicroBatch([], ids_BT, mask_BT, numbers_BT, numbers_BT, numbers_BT)


def samples_of(entry: Entry) -> tuple[Sample, ...]:
    """The samples of an entry."""
    return entry if isinstance(entry, tuple) else (entry,)


def learned_length(entry: Entry) -> int:
    """Tokens up to the last one that is learned in any of the entry's samples."""
    return max(sample.learned_length for sample in samples_of(entry))


def _padded(rows: list[int], entries: Sequence[Entry], length: int, device: torch.device) -> MicroBatch:
    """The first ``length`` tokens of the entries' samples, one row each."""
    samples = [sample for members in zip(*map(samples_of, entries), strict=True) for sample in members]

    def stacked(name: str) -> Tensor | None:
        columns = [getattr(sample, name) for sample in samples]
        if all(column is None for column in columns):
            return None
        if name == "positions" and any(column is None for column in columns):
            raise ValueError("packed rows and others cannot stand in one micro-batch")
        dtype = next(column.dtype for column in columns if column is not None)
        filled = np.full((len(samples), length), name == "kept", dtype=dtype)
        for row, column in zip(filled, columns, strict=True):
            if column is not None:
                row[: len(column)] = column[:length]
        return torch.from_numpy(filled).to(device)

    return replace(
        MicroBatch(rows, *map(stacked, COLUMNS)),  # type: ignore[arg-type]
        trained_tokens_B=_of_trajectories([sample.trained_tokens for sample in samples], device),
        imitated_tokens_B=_of_trajectories([sample.imitated_tokens for sample in samples], device),
        unscored=_known_of_all("their number among the unscored", [sample.unscored for sample in samples]),
    )


def _of_trajectories(counts: Sequence[int | None], device: torch.device) -> Tensor | None:
    """None where every row is a whole trajectory.  Raises ValueError where that is known of some rows only."""
    known = _known_of_all("how many tokens their trajectory has", counts)
    return None if known is None else torch.tensor(known).to(device)


def _known_of_all(what: str, values: Sequence[int | None]) -> list[int] | None:
    """The values, or None where no sample has one.  Raises ValueError where some have."""
    known = [value for value in values if value is not None]
    if 0 < len(known) < len(values):
        raise ValueError(f"{len(known)} of {len(values)} samples know {what}")
    return known or None
