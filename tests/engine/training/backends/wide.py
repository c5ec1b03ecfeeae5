"""A network with the vocabulary of Qwen3 and next to nothing else."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn


class WideNetwork(nn.Module):
    vocab_size, hidden_size = 151_936, 16

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, self.hidden_size)
        self.head = nn.Linear(self.hidden_size, self.vocab_size, bias=False)

    def hidden(self, token_ids_BT: Tensor, positions_BT: Tensor | None = None) -> Tensor:
        return torch.as_tensor(self.embedding(token_ids_BT))

    def logits(self, hidden_ND: Tensor) -> Tensor:
        return torch.as_tensor(self.head(hidden_ND))

    def computing(self) -> Any:
        return nullcontext()
