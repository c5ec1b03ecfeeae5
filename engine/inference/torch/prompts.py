"""Prompts, read once for all rollouts of a group and several at a time.

A prompt's keys and values depend on its tokens and the weights only, to the last bit: it is read from
position 0 in passes of fixed shape (engine/inference/torch/decoder.py).  So a session cannot tell whether its
prompt was read for itself or for another, and with which others beside it.  New weights end what is kept.
"""

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import torch

from engine.inference.torch.decoder import Decoder, Prefix

Prompt = tuple[int, ...]


class Prompts:
    """Keeps prompts within two bounds, of their number and of their tokens (engine/inference/torch/memory.py).

    A reading always fits.  The prompt that was used longest ago goes first.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._layout = decoder.layout
        self._kept: OrderedDict[Prompt, Prefix] = OrderedDict()
        self._tokens = 0

    def __contains__(self, prompt: Prompt) -> bool:
        return prompt in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, prompts: Iterable[Prompt]) -> int:
        """Read the first ``prefill_rows`` different ones that are not kept, and keep them; how many passes it took."""
        rows = self._unread(prompts)
        chunks = -(-max(map(len, rows)) // self._layout.prefill_tokens)
        tokens = np.zeros((self._layout.prefill_rows, chunks * self._layout.prefill_tokens), dtype=np.int64)
        positions = np.full(tokens.shape, self._decoder.scratch_position)
        for row, prompt in enumerate(rows):
            tokens[row, : len(prompt)], positions[row, : len(prompt)] = prompt, range(len(prompt))
        for chunk in zip(*(np.split(array, chunks, axis=1) for array in (tokens, positions)), strict=True):
            self._decoder.read_prompts(*(torch.from_numpy(array).to(self._decoder.device) for array in chunk))
        self._make_room(len(rows), sum(map(len, rows)))
        for row, prompt in enumerate(rows):
            self._kept[prompt] = self._decoder.prefix(row, len(prompt))
        self._tokens += sum(map(len, rows))
        return chunks

    def place(self, prompt: Prompt, slot: int) -> None:
        """Let the slot begin with a prompt that is kept."""
        self._kept.move_to_end(prompt)
        self._decoder.begin(slot, self._kept[prompt])

    def forget(self) -> None:
        self._kept.clear()
        self._tokens = 0

    def _make_room(self, prompts: int, tokens: int) -> None:
        while (
            len(self._kept) + prompts > self._layout.kept_prompts
            or self._tokens + tokens > self._layout.kept_prompt_tokens
        ):
            self._tokens -= len(self._kept.popitem(last=False)[0])

    def _unread(self, prompts: Iterable[Prompt]) -> list[Prompt]:
        unread: dict[Prompt, None] = {}
        for prompt in prompts:
            if prompt not in self._kept:
                unread[prompt] = None
            if len(unread) == self._layout.prefill_rows:
                break
        return list(unread)
