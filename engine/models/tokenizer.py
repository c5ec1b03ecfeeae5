"""The built-in vocabulary: one token per printable ASCII character, and the marks of a conversation.

Text never becomes a mark: ``encode`` knows characters only, so a user or a tool that writes
``<answer>`` gets eight characters.  Marks are added by id, by the code that builds a context.
Stdlib only: rollout workers import this and stay free of torch.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

MARKS = (
    "<pad>", "<unk>", "<bos>", "<eos>", "<user>", "<assistant>",
    "<tool>", "</tool>", "<output>", "</output>", "<answer>", "</answer>",
)  # fmt: skip
CHARACTERS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))


class Tokenizer:
    """Ids count from 0: first ``MARKS``, then ``CHARACTERS``.  ``vocab[id]`` is the token's text."""

    def __init__(self) -> None:
        self.vocab: tuple[str, ...] = (*MARKS, *CHARACTERS)
        self.pad, self.unk, self.bos, self.eos, self.user, self.assistant = range(6)
        self.tool_open, self.tool_close, self.output_open, self.output_close = range(6, 10)
        self.answer_open, self.answer_close = range(10, 12)
        self._id_of_character = {character: i for i, character in enumerate(CHARACTERS, start=len(MARKS))}

    def __len__(self) -> int:
        return len(self.vocab)

    def encode(self, text: str) -> list[int]:
        """One id per character; what is neither printable ASCII nor a newline becomes ``unk``.  Never another mark."""
        return [self._id_of_character.get(character, self.unk) for character in text]

    def decode(self, ids: Iterable[int]) -> str:
        """For people to read: marks appear by name, so parse ids and not this text.

        The inverse of ``encode`` for text of printable ASCII and newlines.
        """
        return "".join(self.pieces(ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each token."""
        return [self.vocab[i] for i in ids]

    def is_mark(self, token_id: int) -> bool:
        return token_id < len(MARKS)

    def as_tokenizers_json(self) -> dict[str, Any]:
        """The content of a ``tokenizer.json`` for the ``tokenizers`` library, with equal ids.

        The marks are plain vocabulary and no "added tokens": those would be recognised inside text.
        """
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "[\\s\\S]"},
                "behavior": "Isolated",
                "invert": False,
            },
            "post_processor": None,
            "decoder": {"type": "Fuse"},
            "model": {
                "type": "WordLevel",
                "vocab": {text: i for i, text in enumerate(self.vocab)},
                "unk_token": self.vocab[self.unk],
            },
        }


@cache
def default_tokenizer() -> Tokenizer:
    """The one vocabulary of the built-in environments."""
    return Tokenizer()
