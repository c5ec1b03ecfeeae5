"""The built-in vocabulary: one token per printable ASCII character, and the marks of a conversation.

A vocabulary of many fixed phrases adds them as whole tokens behind the characters
(engine/models/words.py), so that a small policy reads an observation in a few tokens.
Text never becomes a mark: ``encode`` knows characters and words only, so a user or a tool that writes
``<answer>`` gets eight characters.  Marks are added by id, by the code that builds a context.
Stdlib only: rollout workers import this and stay free of torch.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from engine.models.words import WORDS_OF_VOCABULARY
from engine.spec.environment import Vocabulary

MARKS = (
    "<pad>", "<unk>", "<bos>", "<eos>", "<user>", "<assistant>",
    "<tool>", "</tool>", "<output>", "</output>", "<answer>", "</answer>",
)  # fmt: skip
CHARACTERS = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))


class Tokenizer:
    """Ids count from 0: ``MARKS``, then ``CHARACTERS``, then ``words``.  ``vocab[id]`` is the token's text."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.vocab: tuple[str, ...] = (*MARKS, *CHARACTERS, *words)
        self.pad, self.unk, self.bos, self.eos, self.user, self.assistant = range(6)
        self.tool_open, self.tool_close, self.output_open, self.output_close = range(6, 10)
        self.answer_open, self.answer_close = range(10, 12)
        self._id_of_text = {text: i for i, text in enumerate(self.vocab[len(MARKS) :], start=len(MARKS))}
        # The first alternative that fits wins, so the longest come first.
        longest_first = sorted(words, key=len, reverse=True)
        self._split = "|".join([*map(re.escape, longest_first), r"[\s\S]"])
        self._pieces_in = re.compile(self._split).findall

    def __len__(self) -> int:
        return len(self.vocab)

    def encode(self, text: str) -> list[int]:
        """From left to right, at each place the longest word that fits, or else one character.

        What is neither printable ASCII nor a newline becomes ``unk``.  Never another mark.
        """
        return [self._id_of_text.get(piece, self.unk) for piece in self._pieces_in(text)]

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
                "pattern": {"Regex": self._split},
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
def tokenizer_for(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer of a built-in vocabulary, which a run names as ``model.vocabulary``."""
    return Tokenizer(WORDS_OF_VOCABULARY[vocabulary])
