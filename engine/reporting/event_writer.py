"""Writes what happens in a run: builds events, numbers them and puts them into the spool.

After ``finish`` nothing more is emitted: the finished event is the last one of a run.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from engine.reporting.abridgement import abridged
from engine.reporting.spool import LONGEST_EVENT_BYTES, EventTooLong, Spool
from engine.spec.event import Finished, Log, Metric, TrajectoryStored
from engine.spec.strict import Strict
from engine.spec.trajectory import Trajectory

LONGEST_MESSAGE = 8000
"""Characters of a log's message; a traceback may be longer."""
LONGEST_DOCUMENT_BYTES = LONGEST_EVENT_BYTES - 1024
"""A trajectory may be as long; its event says a little more."""

Level = Literal["debug", "info", "warning", "error"]
Listener = Callable[[Strict], None]


class EventWriter:
    """The only writer of a run's events.  Any thread may call it; a call returns when its events are on disk.

    ``listeners`` see every event after it was written, e.g. the terminal's progress bar.
    """

    def __init__(self, spool: Spool, attempt: int, listeners: Sequence[Listener] = ()) -> None:
        self._spool = spool
        self._attempt = attempt
        self._listeners = listeners
        self._mutex = threading.RLock()
        self._finished = False

    @property
    def last_seq(self) -> int:
        return self._spool.last_seq

    def admit_losses(self) -> None:
        """Log how many events of earlier attempts the disk has spoilt before the service had them."""
        if lost := self._spool.cut_lines:
            self.log("warning", "spool", f"{lost} events of earlier attempts are lost: the disk has spoilt them")

    def emit(self, kind: type[Any], **fields: Any) -> None:
        """One event of ``kind`` (a class of ``engine.spec.event``); number, attempt and time are added here."""
        self.emit_all([(kind, fields)])

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Values that are not finite cannot be drawn; they are left out and named in a warning."""
        finite = {key: float(value) for key, value in values.items() if math.isfinite(value)}
        if finite:
            self.emit(Metric, step=step, values=finite)
        if lost := sorted(values.keys() - finite.keys()):
            self.log("warning", "metrics", f"not a finite number at step {step}: {', '.join(lost)}")

    def trajectories(self, trajectories: Sequence[Trajectory]) -> None:
        """Those that are too long for an event are abridged, and named in a warning."""
        try:
            self._store(trajectories)
        except EventTooLong:
            fitting = [abridged(trajectory, LONGEST_DOCUMENT_BYTES) for trajectory in trajectories]
            self._store(fitting)
            for trajectory in fitting:
                if trajectory.left_out is not None:
                    too_long = f"{trajectory.id} is too long to be stored whole ({LONGEST_DOCUMENT_BYTES} bytes)"
                    self.log("warning", "events", f"{too_long}: {trajectory.left_out} left out")

    def _store(self, trajectories: Sequence[Trajectory]) -> None:
        self.emit_all([(TrajectoryStored, {"trajectory": trajectory}) for trajectory in trajectories])

    def log(self, level: Level, source: str, message: str) -> None:
        self.emit(Log, level=level, source=source, message=message[:LONGEST_MESSAGE])

    def finish(
        self, outcome: Literal["succeeded", "failed", "cancelled"], reason: str | None, summary: Mapping[str, Any]
    ) -> None:
        """The last event; ``events_emitted`` in its summary is its own number."""
        with self._mutex:
            whole = {**summary, "events_emitted": self._spool.last_seq + 1}
            self.emit(Finished, outcome=outcome, reason=reason, summary=whole)
            self._finished = True

    def emit_all(self, drafts: Sequence[tuple[type[Any], dict[str, Any]]]) -> None:
        """Several events as ``emit`` takes them: all of them or, if that raises, none."""
        now = time.time()
        with self._mutex:
            if self._finished or not drafts:
                return
            first_seq = self._spool.last_seq + 1
            events: list[Any] = [
                kind(seq=first_seq + offset, attempt=self._attempt, at=now, **fields)
                for offset, (kind, fields) in enumerate(drafts)
            ]
            self._spool.append([event.model_dump_json().encode() for event in events], first_seq=first_seq)
        for event, listener in itertools.product(events, self._listeners):
            listener(event)
