"""From what the workers saw (engine/rollout/security_log.py) to the run's events.

    worker ──► <run dir>/security-log/<writer>.jsonl ──► this thread, ten times a second ──► events
                                                                    └──► quarantine

How far each file was read is written down after its lines are in the events.  Who is killed in
between tells some lines again; sandbox and number name a record, and its id an alert, so that the
service stores each once.
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engine.reporting.event_writer import EventWriter
from engine.rollout.security_log import AlertEntry, RecordEntry, SecurityLogEntry, TurnEntry
from engine.spec.event import MOST_RECORDS, AlertedTurn, AlertRaised, EgressRecorded

log = logging.getLogger("engine.security_log")

EVERY_S = 0.1
BYTES_AT_ONCE = 2**20
ENTRY: TypeAdapter[RecordEntry | AlertEntry | TurnEntry] = TypeAdapter(SecurityLogEntry)


def log_folder(run_dir: Path) -> Path:
    """Where the workers of a run write their security log.

    A run that version 0.2 began has it below another name: it is renamed, with how far it was read.
    """
    folder, of_0_2 = run_dir / "security-log", run_dir / "security-log"
    if of_0_2.is_dir() and not folder.exists():
        of_0_2.rename(folder)
    return folder


class SecurityEvents(threading.Thread):
    """``on_alert`` is called in this thread, after the alert stands in the events."""

    def __init__(self, folder: Path, events: EventWriter, on_alert: Callable[[AlertEntry], None]) -> None:
        super().__init__(name="security-log", daemon=True)
        self._folder = folder
        self._events = events
        self._on_alert = on_alert
        self._progress = folder / "read.json"
        self._read = self._read_before()
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
            for path in sorted(self._folder.glob("*.jsonl")):
                while self._emit_piece(path):
                    pass

    def close(self) -> None:
        """After the writers have ended: emit the rest.  Raises like ``drain``.  Twice is fine."""
        self._ending.set()
        if self.is_alive():
            self.join()
        self.drain()

    def _emit_piece(self, path: Path) -> bool:
        """One piece of a file; whether there may be more."""
        with path.open("rb") as file:
            file.seek(self._read.get(path.name, 0))
            lines, _, _ = file.read(BYTES_AT_ONCE).rpartition(b"\n")
        if not lines:
            return False
        seen = [entry for line in lines.split(b"\n") if (entry := self._read_back(line, path)) is not None]
        self._events.emit_all(list(_events(seen)))
        for entry in seen:
            if isinstance(entry, AlertEntry):
                self._on_alert(entry)
        self._read[path.name] = self._read.get(path.name, 0) + len(lines) + 1
        self._remember()
        return True

    def _read_back(self, line: bytes, path: Path) -> RecordEntry | AlertEntry | TurnEntry | None:
        """None for a line that the disk has spoilt: the others, and the run, do not wait for it."""
        try:
            return ENTRY.validate_json(line)
        except ValidationError:
            self._events.log(
                "warning",
                "security-log",
                f"{path} has a damaged line of {len(line)} bytes: what a sandbox tried there is lost",
            )
            return None

    def _remember(self) -> None:
        beside = self._progress.with_suffix(".new")
        beside.write_text(json.dumps(self._read))
        os.replace(beside, self._progress)

    def _read_before(self) -> dict[str, int]:
        try:
            return TypeAdapter(dict[str, int]).validate_json(self._progress.read_bytes())
        except FileNotFoundError:
            return {}
        except ValidationError:
            log.warning("%s is torn: what was emitted before is emitted again", self._progress)
            return {}


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
