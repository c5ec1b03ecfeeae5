"""The text of turns that raise alerts, so that a reviewer sees a turn before its trajectory is stored.

    episode ── begins, ended ──► AlertedTurns ◄── alerted ── detector thread
                                      │ only turns with an alert
                                      ▼
                                log of sightings

A turn without an alert is written nowhere; one with many is written once as it stands and once when it is over.
"""

import threading

from engine.rollout.security_log import SecurityLog, TurnSeen
from engine.spec.security import Place, TurnText


class AlertedTurns:
    """Any thread may call it."""

    def __init__(self, sightings: SecurityLog) -> None:
        self._sightings = sightings
        self._mutex = threading.Lock()
        self._texts: dict[str, dict[int, TurnText]] = {}
        self._written: dict[str, dict[int, TurnText]] = {}

    def note(self, place: Place, text: TurnText) -> None:
        """The turn stands so now.  One that has raised an alert is written again."""
        with self._mutex:
            self._texts.setdefault(place.trajectory, {})[place.turn] = text
            if place.turn in self._written.get(place.trajectory, {}):
                self._write(place, text)

    def alerted(self, place: Place | None) -> None:
        """Write the turn of an alert, unless it was written as it stands.  Nothing is known after ``forget``."""
        if place is None:
            return
        with self._mutex:
            text = self._texts.get(place.trajectory, {}).get(place.turn)
            if text is not None:
                self._write(place, text)

    def forget(self, trajectory: str) -> None:
        """Its episode is over."""
        with self._mutex:
            self._texts.pop(trajectory, None)
            self._written.pop(trajectory, None)

    def _write(self, place: Place, text: TurnText) -> None:
        written = self._written.setdefault(place.trajectory, {})
        if written.get(place.turn) != text:
            self._sightings.write_or_owe(TurnSeen(place=place, text=text))
            written[place.turn] = text
