"""What the sandboxes of a worker tried, on disk before anybody else has it.

A log (engine/durable_log.py) that all workers of a run write; a line stands there whole as soon as ``write``
returns, so a killed worker takes nothing with it.  The driver reads the lines into the run's events
(engine/reporting/security_events.py) and removes the segments that are done.
"""

import logging
import threading
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from engine.durable_log import LogWriter
from engine.spec import files_of_0_2
from engine.spec.security import Origin, TurnText
from engine.spec.strict import Strict
from sandboxes.egress.detectors.finding import Finding
from sandboxes.egress.record import EgressRecord

log = logging.getLogger(__name__)

SEGMENT_BYTES = 16 * 2**20
"""After which a writer begins another segment."""


class _Entry(Strict):
    """A line of the log, also as version 0.2 wrote it."""

    @model_validator(mode="before")
    @classmethod
    def _of_0_2(cls, document: Any) -> Any:
        return files_of_0_2.security_event(document)


class RecordEntry(_Entry):
    kind: Literal["record"] = "record"
    sandbox: str
    origin: Origin | None
    record: EgressRecord


class AlertEntry(_Entry):
    kind: Literal["alert"] = "alert"
    id: str
    origin: Origin | None
    finding: Finding
    quarantined: bool


class TurnEntry(_Entry):
    """The turn of an alert, before the alert and again when the turn's call is over."""

    kind: Literal["turn"] = "turn"
    origin: Origin
    text: TurnText


SecurityLogEntry = Annotated[RecordEntry | AlertEntry | TurnEntry, Field(discriminator="kind")]


class SecurityLog:
    """Any thread may write.  The file is made with the first line."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._mutex = threading.Lock()
        self._writer = LogWriter(folder, uuid.uuid4().hex, segment_bytes=segment_bytes)
        self._owed: list[bytes] = []

    def write(self, entry: RecordEntry | AlertEntry) -> None:
        """Raises OSError, e.g. on a full disk; then the entry is not there, and the caller still has it."""
        with self._mutex:
            self._pay()
            self._writer.append(_line(entry))

    def write_or_owe(self, entry: AlertEntry | TurnEntry) -> None:
        """One that nobody else keeps: what cannot be written now comes before whatever is written next."""
        with self._mutex:
            self._owed.append(_line(entry))
            try:
                self._pay()
            except OSError as error:
                log.error("%s of %s cannot be written yet: %s", entry.kind, entry.origin, error)

    def close(self) -> None:
        """Raises OSError if something is still owed."""
        with self._mutex:
            try:
                self._pay()
            finally:
                self._writer.close()

    def _pay(self) -> None:
        while self._owed:
            self._writer.append(self._owed[0])
            self._owed.pop(0)


def _line(entry: RecordEntry | AlertEntry | TurnEntry) -> bytes:
    return entry.model_dump_json().encode()


def label_of(origin: Origin) -> str:
    """Return what the records of a sandbox carry while a turn's tool call runs."""
    return f"{origin.trajectory}#{origin.turn}"


def origin_of(label: str | None) -> Origin | None:
    """Return the origin that ``label_of`` was given; None for any other label."""
    trajectory, mark, turn = (label or "").rpartition("#")
    return Origin(trajectory=trajectory, turn=int(turn)) if mark and turn.isdecimal() else None
