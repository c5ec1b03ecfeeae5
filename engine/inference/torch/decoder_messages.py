"""What a divided generator and its decoders say to each other."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from engine.spec.model import Model
from engine.spec.resources import Resources

Method = Literal["generate", "stream", "rewind", "release", "suspend", "resume", "load_weights", "abort_all"]
STARTED = 0
"""The number of the call that the start of a decoder answers."""


@dataclass(frozen=True)
class Begin:
    """What a decoder is made of: the first thing that it is told."""

    model: Model
    resources: Resources
    """Its own share of those of the run."""
    seed: int


class Call(NamedTuple):
    number: int
    """By which it is answered; ``release`` is not."""
    method: Method
    arguments: tuple[Any, ...]


class DecoderReply(NamedTuple):
    number: int
    value: Any
    """What the call returned, or the exception that it raised."""
    stats: dict[str, float]
    """The decoder's, when it answered."""


class StreamedToken(NamedTuple):
    """A token of a call that is streamed."""

    number: int
    token: int
    logprob: float
