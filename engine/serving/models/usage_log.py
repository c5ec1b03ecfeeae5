"""What keys have used: a file of JSON lines for each day (UTC), which outlives every process.

A line that a kill has cut is dropped when the file is opened again: its caller has had no answer.  Any other one that
cannot be read is passed over.
"""

import errno
import logging
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from engine.spec.serving import UsageLine

log = logging.getLogger(__name__)


def day_of(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def lines_in(file: Path) -> list[UsageLine]:
    """The whole lines of one day's file that can be read; none where there is no file."""
    if not file.exists():
        return []
    lines = []
    for number, text in enumerate(_whole(file.read_bytes()).splitlines(), 1):
        try:
            lines.append(UsageLine.model_validate_json(text))
        except ValidationError:
            log.error("%s, line %d: it cannot be read, and is not counted", file, number)
    return lines


class UsageLog:
    """Belongs to one thread.  ``folder`` is made if it is not there; one process at a time writes there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._day, self._descriptor = "", -1
        self._tokens: Counter[str] = Counter()

    def write(self, line: UsageLine) -> None:
        """Raises OSError where the disk is full: what cannot be recorded is not served."""
        self._turn_to(day_of(line.at))
        self._append(line.model_dump_json().encode() + b"\n")
        self._tokens[line.key] += line.prompt_tokens + line.sampled_tokens

    def tokens_today(self, key: str, now: float) -> int:
        """The tokens of the key since midnight."""
        self._turn_to(day_of(now))
        return self._tokens[key]

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._day, self._descriptor = "", -1

    def _append(self, text: bytes) -> None:
        """All of it, or nothing: the next line would go on behind a part."""
        written = os.write(self._descriptor, text)
        if written < len(text):
            os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _turn_to(self, day: str) -> None:
        if day == self._day:
            return
        self.close()
        file = self._folder / f"{day}.jsonl"
        if file.exists():
            os.truncate(file, len(_whole(file.read_bytes())))
        self._tokens = Counter()
        for line in lines_in(file):
            self._tokens[line.key] += line.prompt_tokens + line.sampled_tokens
        self._descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._day = day


def _whole(content: bytes) -> bytes:
    """Up to the end of the last line that can be read."""
    whole = content[: content.rfind(b"\n") + 1]
    if whole:
        last = whole[whole[:-1].rfind(b"\n") + 1 :]
        try:
            UsageLine.model_validate_json(last)
        except ValidationError:
            return whole[: len(whole) - len(last)]
    return whole
