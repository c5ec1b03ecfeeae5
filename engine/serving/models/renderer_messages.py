"""What a server of models and the processes of its renderers say to each other."""

from typing import Any, Literal, NamedTuple

Method = Literal["begin", "context", "settled", "answered"]


class RendererCall(NamedTuple):
    number: int
    """By which it is answered."""
    method: Method
    arguments: bytes
    """Pickled apart, for what nests too deep for that is the fault of one call."""


class RendererReply(NamedTuple):
    number: int
    value: Any
    """What the call returned, or the exception that it raised."""
