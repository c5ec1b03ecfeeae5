"""What is kept of every attempt.  Numbered per sandbox without gaps; bounded; nothing is changed afterwards.

An attempt gives one record of phase ``attempt`` as soon as there is a decision, and, if it was let
through, records of phase ``traffic`` with what went over it, the last of them when it ends.
``count`` is more than 1 where a flood was summed up (``log``): the sum of ``count`` over phase
``attempt`` is the number of attempts, always.
"""

from typing import Literal

from pydantic import Field

from sandboxes.egress.connection_attempt import ConnectionAttempt, Frozen, Label
from sandboxes.egress.decision import EgressDecision

Phase = Literal["attempt", "traffic"]
Ended = Literal["closed", "denied", "cut", "unreachable"]

OPENING_BYTES = 256
RECORD_BYTES = 8192
"""No record is longer than this as JSON."""


class Spread(Frozen):
    """What a record that stands for *different* attempts says of them; its own attempt is the first one."""

    addresses: int = Field(ge=0)
    """Different addresses, counted up to ``SPREAD_LIMIT``."""
    ports: int = Field(ge=0)
    names: int = Field(ge=0)


SPREAD_LIMIT = 1000


class EgressRecord(Frozen):
    seq: int = Field(ge=1)
    """1, 2, 3 ... per sandbox, without gaps."""
    phase: Phase = "attempt"
    attempt: ConnectionAttempt
    decision: EgressDecision
    label: Label | None = None
    """The tool call during which it happened, as the sandbox's owner named it."""
    count: int = Field(default=1, ge=1)
    """How many attempts of the same kind this record stands for."""
    last_at: float
    """When the last of them happened; for ``traffic``, the moment of this statement."""
    spread: Spread | None = None
    """None: all of them are equal in protocol, destination, name and decision."""
    bytes_up: int = Field(default=0, ge=0)
    """Sent by the sandbox since the record before about the same attempt: the sum over all records is what was sent."""
    bytes_down: int = Field(default=0, ge=0)
    packets_up: int = Field(default=0, ge=0)
    """Pieces in which the sandbox sent it; with ``bytes_up`` it tells keep-alives from downloads."""
    opening_up: bytes = Field(default=b"", max_length=OPENING_BYTES)
    """The first bytes that the sandbox sent, denied or not."""
    opening_down: bytes = Field(default=b"", max_length=OPENING_BYTES)
    ended: Ended | None = None
    """None: still open, or never had a connection.  ``cut``: a quota or the end of the sandbox."""
