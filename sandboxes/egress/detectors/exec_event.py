"""What a sandbox was told to run.  As told by whoever called ``exec`` or ``run_python``, not by the sandbox."""

from typing import Any

from pydantic import Field, model_validator

from sandboxes.egress.connection_attempt import Frozen, Label
from sandboxes.egress.detectors.abridged import ends

CODE_CHARACTERS = 256 * 1024
ARGV_CHARACTERS = 256 * 1024
"""The length of all arguments together."""


class ExecEvent(Frozen):
    sandbox: Label
    at: float
    label: Label | None = None
    """The tool call."""
    argv: tuple[str, ...] = ()
    stdin: str = ""
    code: str = ""
    """Python that the sandbox's interpreter runs."""
    writes: Label | None = None
    """The path of a file that is written through the facade; its content, if it is a text, is ``code`` or ``stdin``."""
    found: bool | None = None
    """Whether a file that is written was there before; None if nobody looked."""
    adds: bool = False
    """Whether all that such a file held, or all that a test asked, is still in it."""
    rewrites: bool = False
    """Whether a test that asks something else than before asks as many and as sharp questions."""
    gone: bool = False
    """Whether the file is gone: it was there before the call and is not any more."""
    compares: frozenset[str] = frozenset()
    """Tests that the call may change: what it changed in them is told when it is over, as ``writes``."""
    compared: bool = False
    """That has been told."""
    inner: bool = False
    """Whether it is what a program of a call runs, and no call of its own."""
    observed: bool = False
    """Whether deeds of this sandbox are told as well: then its text is a hint and no more."""
    forks_refused: int = Field(default=0, ge=0)
    """How often the sandbox was denied a further process since the event before, where that is counted."""
    cut: frozenset[str] = frozenset()
    """Which of these were longer than what is kept of them."""

    @property
    def begins(self) -> bool:
        """Whether a call begins, and all that belongs to the one before is over."""
        return self.writes is None and not self.compared and not self.inner

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, given: Any) -> Any:
        """Both ends of a text are kept: padding in front or behind hides nothing, only padding on both sides does."""
        if not isinstance(given, dict):
            return given
        kept = {
            name: ends(value, CODE_CHARACTERS) if name in {"stdin", "code"} and isinstance(value, str) else value
            for name, value in given.items()
        }
        if isinstance(given.get("argv"), list | tuple):
            kept["argv"] = _first(given["argv"], ARGV_CHARACTERS)
        cut = {name for name in ("argv", "stdin", "code") if name in given and kept[name] != given[name]}
        return kept | {"cut": cut} if cut else kept


def _first(words: Any, limit: int) -> Any:
    """As many words as there is room for, and both ends of the one that is too long."""
    kept: list[Any] = []
    for word in words:
        if limit < 2:
            break
        kept.append(ends(word, limit) if isinstance(word, str) else word)
        limit -= len(kept[-1]) + 1 if isinstance(word, str) else 1
    return words if len(kept) == len(words) and kept == list(words) else tuple(kept)
