"""One line that is rewritten on a terminal, and lines only when something changed elsewhere."""

import errno
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
        self._print(text)

    def status(self, text: str, *, change: str) -> None:
        """The current state.  Without a terminal it is shown only when ``change`` differs from the last time."""
        if self._is_terminal:
            self._clear()
            self._shown = text[: terminal_width() - 1]
            self._print(self._shown, end="")
        elif change != self._last_change and time.monotonic() >= self._next_at:
            self._last_change, self._next_at = change, time.monotonic() + QUIET_S
            self._print(text)

    def _clear(self) -> None:
        if self._shown:
            self._print("\r\x1b[K", end="")
            self._shown = ""

    def _print(self, text: str, *, end: str = "\n") -> None:
        """A log on a full disk gets it, buffered, when there is room again."""
        try:
            print(text, end=end, file=self._stream, flush=True)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise


def terminal_width() -> int:
    return shutil.get_terminal_size((120, 24)).columns
