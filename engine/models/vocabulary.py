"""The tokens of a run's model as text, whatever model it is.  No torch: rollout workers and the command line ask here.

What stands *between* messages and ids is the renderer's business (``engine/rollout/renderers``).
"""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from engine.models.origin import model_origin
from engine.models.tokenizer import tokenizer_for
from engine.spec.model import BuiltinModel, Model

if TYPE_CHECKING:
    from engine.models.pretrained_tokenizer import PretrainedTokenizer

__all__ = ["Tokens", "tokens_of"]

CALL_MARKS = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]")
"""With which a tool call begins, where the model's family has a token for it."""


class Tokens(Protocol):
    """A vocabulary."""

    def __len__(self) -> int:
        """One more than the highest id."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """For people to read."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token."""
        ...

    @property
    def tool_open(self) -> int | None:
        """The token that begins a tool call; None where a call begins with text."""
        ...


def tokens_of(model: Model) -> Tokens:
    """The vocabulary of the model.  Raises ModelFolderRefused."""
    origin = model_origin(model)
    if isinstance(origin.model, BuiltinModel):
        return tokenizer_for(origin.model.vocabulary)
    assert origin.weights is not None  # a pretrained model has a folder
    return _pretrained(origin.weights)


class _PretrainedTokens:
    def __init__(self, tokenizer: "PretrainedTokenizer") -> None:
        self._tokenizer = tokenizer
        marks = [tokenizer.marks[mark] for mark in CALL_MARKS if mark in tokenizer.marks]
        self.tool_open = marks[0] if marks else None

    def __len__(self) -> int:
        return len(self._tokenizer)

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.text(list(ids))

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return self._tokenizer.pieces(list(ids))


@cache
def _pretrained(folder: Path) -> _PretrainedTokens:
    from engine.models.pretrained_tokenizer import PretrainedTokenizer

    return _PretrainedTokens(PretrainedTokenizer(folder))
