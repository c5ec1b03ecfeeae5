"""Continual pre-training: every token of whole documents is learned (ALE, section 3.2.1).

Two stages: the second has longer rows and lets go of weight decay.  Shapes: B rows, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from engine.algorithms.schedules import linear

LEARNING_RATE = 3e-5
"""Constant, in both stages; a batch has 32 M tokens there."""
WEIGHT_DECAY = (0.1, 0.01)
"""In the first stage and at the first update of the second; at the last update of the second."""


@dataclass(frozen=True)
class Packed:
    """Documents one after the other in full rows; one that a row cannot hold goes on in the next as another one."""

    token_ids_BT: Tensor
    document_BT: Tensor
    """The number of the document in its row; -1 on padding, which only the last row has."""
    position_BT: Tensor
    """Within the document, from 0; 0 on padding."""

    def visible_BTT(self) -> Tensor:
        """Which tokens (last) each token may look at: itself and those before it in its own document."""
        same_BTT = self.document_BT.unsqueeze(2) == self.document_BT.unsqueeze(1)
        return same_BTT.tril() & (self.document_BT >= 0).unsqueeze(2)


def packed(documents: Sequence[Sequence[int]], *, row_tokens: int, pad_id: int = 0) -> Packed:
    """No token is lost or doubled.  Raises ValueError for rows of less than 2 tokens, which predict nothing."""
    if row_tokens < 2:
        raise ValueError(f"row_tokens = {row_tokens}: a row needs at least 2, one to predict from and one to predict")
    total = sum(map(len, documents))
    rows = -(-total // row_tokens)
    ids, numbers, positions = [pad_id] * (rows * row_tokens), [-1] * (rows * row_tokens), [0] * (rows * row_tokens)
    place, number = 0, 0
    for document in documents:
        began = place
        for token_id in document:
            if place % row_tokens == 0:
                began, number = place, 0
            ids[place], numbers[place], positions[place] = token_id, number, place - began
            place += 1
        number += len(document) > 0
    shape = (rows, row_tokens)
    return Packed(*(torch.tensor(column, dtype=torch.long).reshape(shape) for column in (ids, numbers, positions)))


def next_token_loss(logp_BT: Tensor, position_BT: Tensor) -> tuple[Tensor, Tensor]:
    """``(sum, weight)`` of -log p(x_t | x_<t); the first token of a document has nothing before it.

    ``logp_BT`` is the log-prob of each token given what it may look at.
    """
    learned_BT = position_BT > 0
    return -logp_BT.where(learned_BT, 0.0).sum(), learned_BT.sum()


def weight_decay(stage: Literal[1, 2], update: int, total_updates: int) -> float:
    """Of an update (from 0) of a stage with that many: constant, then annealed in equal parts."""
    first, last = WEIGHT_DECAY
    return first if stage == 1 else linear(update, total_updates, first=first, last=last)
