"""One line that is rewritten on a terminal, and lines only when something changed elsewhere."""

import shutil
import sys
import time
from typing import TextIO

QUIET_S = 5.0
"""Without a terminal, at most one status line in this time."""


class Screen:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._is_terminal = self._stream.isatty()
        self._shown = ""
        self._last_change = ""
        self._next_at = 0.0

    def show(self, text: str) -> None:
        """A line that stays."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def status(self, text: str, *, change: str) -> None:
        """The current state.  Without a terminal it is shown only when ``change`` differs from the last time."""
        if self._is_terminal:
            self._clear()
            self._shown = text[: terminal_width() - 1]
            print(self._shown, end="", file=self._stream, flush=True)
        elif change != self._last_change and time.monotonic() >= self._next_at:
            self._last_change, self._next_at = change, time.monotonic() + QUIET_S
            print(text, file=self._stream, flush=True)

    def _clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=self._stream)
            self._shown = ""


def terminal_width() -> int:
    return shutil.get_terminal_size((120, 24)).columns
