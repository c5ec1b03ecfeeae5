"""The text of turns that raise alerts, so that a reviewer sees a turn before its trajectory is stored.

    episode ── begins, ended ──► AlertedTurns ◄── alerted ── detector thread
                                      │ only turns with an alert
                                      ▼
                                security log

A turn without an alert is written nowhere; one with many is written once as it stands and once when it is over.
"""

import threading

from engine.rollout.security_log import SecurityLog, TurnEntry
from engine.spec.security import Origin, TurnText


class AlertedTurns:
    """Any thread may call it."""

    def __init__(self, security_log: SecurityLog) -> None:
        self._security_log = security_log
        self._mutex = threading.Lock()
        self._texts: dict[str, dict[int, TurnText]] = {}
        self._written: dict[str, dict[int, TurnText]] = {}

    def note(self, origin: Origin, text: TurnText) -> None:
        """The turn stands so now.  One that has raised an alert is written again."""
        with self._mutex:
            self._texts.setdefault(origin.trajectory, {})[origin.turn] = text
            if origin.turn in self._written.get(origin.trajectory, {}):
                self._write(origin, text)

    def alerted(self, origin: Origin | None) -> None:
        """Write the turn of an alert, unless it was written as it stands.  Nothing is known after ``forget``."""
        if origin is None:
            return
        with self._mutex:
            text = self._texts.get(origin.trajectory, {}).get(origin.turn)
            if text is not None:
                self._write(origin, text)

    def forget(self, trajectory: str) -> None:
        """Its episode is over."""
        with self._mutex:
            self._texts.pop(trajectory, None)
            self._written.pop(trajectory, None)

    def _write(self, origin: Origin, text: TurnText) -> None:
        written = self._written.setdefault(origin.trajectory, {})
        if written.get(origin.turn) != text:
            self._security_log.write_or_owe(TurnEntry(origin=origin, text=text))
            written[origin.turn] = text
