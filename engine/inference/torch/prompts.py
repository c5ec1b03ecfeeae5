"""Prompts, read once for all rollouts of a group and several at a time.

A prompt's keys and values depend on its tokens and the weights only, to the last bit: it is read from
position 0 in passes of fixed shape (engine/inference/torch/decoder.py).  So a session cannot tell whether its
prompt was read for itself or for another, and with which others beside it.  New weights end what is kept.
"""

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import torch

from engine.inference.torch.decoder import PREFILL_ROWS, PREFILL_TOKENS, Decoder, Prefix

Prompt = tuple[int, ...]


class Prompts:
    """Keeps as many prompts as the decoder has slots, and never fewer than one reading takes: at most the size of the
    KV cache once more."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self._most = decoder, max(decoder.slots, PREFILL_ROWS)
        self._kept: OrderedDict[Prompt, Prefix] = OrderedDict()

    def __contains__(self, prompt: Prompt) -> bool:
        return prompt in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, prompts: Iterable[Prompt]) -> int:
        """Read the first PREFILL_ROWS different ones that are not kept, and keep them; how many passes it took."""
        rows = self._unread(prompts)
        chunks = -(-max(map(len, rows)) // PREFILL_TOKENS)
        tokens = np.zeros((PREFILL_ROWS, chunks * PREFILL_TOKENS), dtype=np.int64)
        positions = np.full(tokens.shape, self._decoder.scratch_position)
        for row, prompt in enumerate(rows):
            tokens[row, : len(prompt)], positions[row, : len(prompt)] = prompt, range(len(prompt))
        for chunk in zip(*(np.split(array, chunks, axis=1) for array in (tokens, positions)), strict=True):
            self._decoder.read_prompts(*(torch.from_numpy(array).to(self._decoder.device) for array in chunk))
        for row, prompt in enumerate(rows):
            self._kept[prompt] = self._decoder.prefix(row, len(prompt))
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return chunks

    def place(self, prompt: Prompt, slot: int) -> None:
        """Let the slot begin with a prompt that is kept."""
        self._kept.move_to_end(prompt)
        self._decoder.begin(slot, self._kept[prompt])

    def forget(self) -> None:
        self._kept.clear()

    def _unread(self, prompts: Iterable[Prompt]) -> list[Prompt]:
        unread: dict[Prompt, None] = {}
        for prompt in prompts:
            if prompt not in self._kept:
                unread[prompt] = None
            if len(unread) == PREFILL_ROWS:
                break
        return list(unread)
