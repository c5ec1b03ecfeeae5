"""From what the workers saw (engine/rollout/security_log.py) to the run's events.

    worker ──► <run dir>/security-log/<writer>-<n>.jsonl ──► this thread, ten times a second ──► events
                                                                        └──► quarantine

The reader's cursor moves after its lines are in the events (engine/durable_log.py).  A driver that is
killed in between emits some lines again; sandbox and number name a record, and its id an alert, so that
the service stores each once.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engine.durable_log import LogReader, Piece
from engine.reporting.event_writer import EventWriter
from engine.rollout.security_log import AlertEntry, RecordEntry, SecurityLogEntry, TurnEntry
from engine.spec.event import MOST_RECORDS, AlertedTurn, AlertRaised, EgressRecorded

log = logging.getLogger("engine.security_log")

EVERY_S = 0.1
ENTRY: TypeAdapter[RecordEntry | AlertEntry | TurnEntry] = TypeAdapter(SecurityLogEntry)


def log_folder(run_dir: Path) -> Path:
    """Return the folder in which the workers of a run write their security log.

    A run that version 0.2 began has it below another name: it is renamed, with how far it was read.
    """
    folder, of_0_2 = run_dir / "security-log", run_dir / "sightings"
    if of_0_2.is_dir() and not folder.exists():
        of_0_2.rename(folder)
    return folder


class SecurityEvents(threading.Thread):
    """``on_alert`` is called in this thread, after the alert stands in the events."""

    def __init__(self, folder: Path, events: EventWriter, on_alert: Callable[[AlertEntry], None]) -> None:
        super().__init__(name="security-log", daemon=True)
        self._events = events
        self._on_alert = on_alert
        self._reader = LogReader(folder, folder / "read.json")
        self._mutex = threading.Lock()
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.wait(EVERY_S):
            try:
                self.drain()
            except Exception:  # nothing is lost: the lines stay, and are read again
                log.exception("the security log waits on disk")

    def drain(self) -> None:
        """Emit everything that stands there now.  Raises SpoolError and OSError; then the rest is emitted next time."""
        with self._mutex:
            for piece in self._reader.pieces():
                self._emit(piece)
                self._reader.passed(piece)

    def close(self) -> None:
        """Emit the rest after the writers have ended.  Raises like ``drain``; a second call does nothing."""
        self._ending.set()
        if self.is_alive():
            self.join()
        self.drain()

    def _emit(self, piece: Piece) -> None:
        seen = [entry for line in piece.lines if (entry := self._read_back(line, piece.path)) is not None]
        self._events.emit_all(list(_events(seen)))
        for entry in seen:
            if isinstance(entry, AlertEntry):
                self._on_alert(entry)

    def _read_back(self, line: bytes, path: Path) -> RecordEntry | AlertEntry | TurnEntry | None:
        """Return None for a line that the disk has spoilt: the others, and the run, do not wait for it."""
        try:
            return ENTRY.validate_json(line)
        except ValidationError:
            self._events.log(
                "warning",
                "security-log",
                f"{path} has a damaged line of {len(line)} bytes: what a sandbox tried there is lost",
            )
            return None


def _events(seen: Sequence[RecordEntry | AlertEntry | TurnEntry]) -> Iterator[tuple[type[Any], dict[str, Any]]]:
    """Records of one sandbox and turn that follow each other share an event."""
    for (kind, sandbox, origin), members in groupby(seen, key=_whose):
        if kind == "turn":
            for member in members:
                assert isinstance(member, TurnEntry)
                yield AlertedTurn, {"origin": origin, "text": member.text}
            continue
        if kind == "alert":
            for member in members:
                assert isinstance(member, AlertEntry)
                fields = {
                    "id": member.id,
                    "origin": origin,
                    "finding": member.finding,
                    "quarantined": member.quarantined,
                }
                yield AlertRaised, fields
            continue
        records = [member.record for member in members if isinstance(member, RecordEntry)]
        for first in range(0, len(records), MOST_RECORDS):
            yield (
                EgressRecorded,
                {"sandbox": sandbox, "origin": origin, "records": records[first : first + MOST_RECORDS]},
            )


def _whose(entry: RecordEntry | AlertEntry | TurnEntry) -> tuple[str, str, Any]:
    match entry:
        case RecordEntry():
            return entry.kind, entry.sandbox, entry.origin
        case AlertEntry():
            return entry.kind, entry.finding.sandbox, entry.origin
        case TurnEntry():
            return entry.kind, "", entry.origin
