"""The ids that text has where it stands in a conversation: behind other text, and not at the beginning of one.

To most tokenizers this is no difference.  Others put a space before a text (SentencePiece, as Llama 2 and Mistral have
it), or let a mark swallow the white space beside it (Phi-3).  They encode a piece behind what stands before it, and the
ids of that are cut off again.  Where a token reaches across the border, a sign stands before the piece in its place, so
that it begins as the policy begins it, which has read what stands before it and no more.
"""

from collections.abc import Sequence

from engine.models.pretrained_tokenizer import PretrainedTokenizer

_PROBES = ("a", "Aa", "1", "{")
"""What a policy may begin with, without white space: that may be cut otherwise beside other white space."""
_SIGNS = ("\U0010fffd", "\n", ".", "a")
"""What hardly a token joins to what stands behind it."""


class PlacedEncoder:
    """Encodes pieces that stand behind ``before``, whose marks are as ``PretrainedTokenizer.mark`` gives them."""

    def __init__(self, tokenizer: PretrainedTokenizer, before: str) -> None:
        self._tokenizer = tokenizer
        self._before = before, tokenizer.encode(before)
        self.is_alike = not tokenizer.marks_see_neighbours and all(map(self._is_alike, _PROBES))

    is_alike: bool
    """Whether a piece has the same ids apart."""

    def encode(self, text: str) -> list[int]:
        """The ids of ``text`` behind what stands before it.  Raises ValueError where nothing separates the two."""
        if self.is_alike:
            return self._tokenizer.encode(text)
        if (ids := self._behind(*self._before, text)) is not None:
            return ids
        leads = ((sign, self._tokenizer.encode(sign)) for sign in _SIGNS)
        ids = next((ids for lead in leads if (ids := self._behind(*lead, text)) is not None), None)
        if ids is None:
            raise ValueError("the tokenizer has no ids for it that begin where it begins")
        return ids

    def _behind(self, before: str, before_ids: Sequence[int], text: str) -> list[int] | None:
        """None where what stands before has other ids with the text behind it."""
        whole = self._tokenizer.encode(before + text)
        return whole[len(before_ids) :] if whole[: len(before_ids)] == before_ids else None

    def _is_alike(self, text: str) -> bool:
        return self._behind(*self._before, text) == self._tokenizer.encode(text)
