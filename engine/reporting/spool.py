"""The run's events on disk, before anybody else has them (docs/events.md, "The numbers").

A log (engine/durable_log.py) whose segments are named ``<first seq>.jsonl``, one event a line, numbered
1, 2, 3 ... over all attempts, each batch fsynced.  Its reader is the service, its cursor the number that the
service has acknowledged: segments wholly below it are deleted, except the last one, whose name and lines
keep the numbering alive.

One process writes at a time (a file lock); inside it any thread may append or read.
"""

import fcntl
import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pydantic import NonNegativeInt, TypeAdapter

from engine.disk import fsync
from engine.durable_log import SUFFIX, Cursor, DamagedCursor, Segment, line_ends, segments

LONGEST_EVENT_BYTES = 3 * 2**20
"""Shorter than the largest batch (4 MiB), so every event can be sent."""


class SpoolError(Exception):
    """The spool cannot be opened or written; the message says where and why."""


class EventTooLong(SpoolError):
    """An event that no batch could carry; nothing was written."""


class Spool:
    """Numbers events and keeps them until they are acknowledged.

    Opening takes the writer's lock and waits up to ``lock_timeout_s`` for an earlier attempt to end.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = 4 * 2**20, lock_timeout_s: float = 60.0) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._mutex = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = _locked(folder / "lock", lock_timeout_s)
        self._cursor: Cursor[int] = Cursor(folder / "acked", TypeAdapter(NonNegativeInt), sync=True)
        self.acked = self._acked_before()
        """The highest number that the service has."""
        paths = [path for path in segments(folder) if path.stem.isdecimal()]
        self._segments = [_Numbered.opened(path, self.acked) for path in paths]
        self._check_consecutive()
        self.cut_lines = sum(segment.cut_lines for segment in self._segments)
        """Whole lines that were no events when it was opened, and what came after them: a kill only tears the last."""
        if self._segments and self.last_seq < self.acked:  # what is lost the service has: its numbers are taken
            for segment in self._segments:
                segment.path.unlink()
            self._segments = []
        if self._segments:
            self._writer = Segment.reopened(self._segments[-1].path, size=self._segments[-1].size)
        else:
            self._writer = self._begun_segment(self.acked + 1)

    @property
    def last_seq(self) -> int:
        """The number of the newest event; 0 if there is none."""
        return self._segments[-1].next_seq - 1

    @property
    def oldest_seq(self) -> int:
        """The lowest number that can still be read (if it was written yet)."""
        return self._segments[0].first_seq

    def continue_at(self, next_seq: int) -> None:
        """Give ``next_seq`` to the next event; only for a spool that is still empty (another disk).

        Killed in its middle, it leaves the spool empty, as it was, or as it is to be.
        """
        with self._mutex:
            if self.last_seq >= next_seq:
                raise SpoolError(
                    f"{self._folder} already holds event {self.last_seq}, so it cannot go on with {next_seq}"
                )
            self._writer.close()
            for segment in self._segments:
                segment.path.unlink()
            fsync(self._folder)
            self._segments = []
            self.acked = next_seq - 1
            self._writer = self._begun_segment(next_seq)

    def append(self, lines: Sequence[bytes], *, first_seq: int) -> int:
        """Write and fsync one batch of consecutive events beginning with ``first_seq``; returns the last number.

        A line is the JSON of one event, without newline.  Either the whole batch stands in the
        spool afterwards or (``SpoolError``, e.g. a full disk) nothing of it.
        """
        with self._mutex:
            segment = self._segments[-1]
            if first_seq != segment.next_seq:
                raise SpoolError(f"event {first_seq} was offered where {segment.next_seq} comes next")
            if too_long := [len(line) for line in lines if len(line) >= LONGEST_EVENT_BYTES]:
                raise EventTooLong(f"an event of {too_long[0]} bytes is longer than {LONGEST_EVENT_BYTES - 1}")
            try:
                self._writer.append(lines, sync=True)
            except OSError as error:
                raise SpoolError(f"events cannot be written to {segment.path}: {error.strerror or error}") from error
            segment.add(lines)
            last_seq = self.last_seq
            if segment.size >= self._segment_bytes:
                with suppress(OSError):  # the batch stands in the full segment, and the next one tries again
                    self._roll(segment)
            return last_seq

    def read(self, first_seq: int, *, max_events: int, max_bytes: int) -> list[bytes]:
        """Lines (without newline) beginning with ``first_seq``, from one segment, within both limits; maybe none."""
        with self._mutex:
            segment = next((part for part in self._segments if part.first_seq <= first_seq < part.next_seq), None)
            span = segment.span(first_seq, max_events, max_bytes) if segment else (0, 0)
            path = segment.path if segment else None
        if path is None:
            return []
        with path.open("rb") as file:
            file.seek(span[0])
            return file.read(span[1] - span[0]).splitlines()

    def acknowledge(self, seq: int) -> None:
        """The service has everything up to ``seq``: remember it and drop the segments that are done."""
        with self._mutex:
            if seq <= self.acked:
                return
            self.acked = seq
            self._cursor.write(seq)
            while len(self._segments) > 1 and self._segments[0].next_seq - 1 <= seq:
                self._segments.pop(0).path.unlink(missing_ok=True)

    def close(self) -> None:
        with self._mutex:
            self._writer.close()
            self._lock_file.close()

    def _roll(self, full: "_Numbered") -> None:
        writer = self._begun_segment(full.next_seq)
        self._writer.close()
        self._writer = writer

    def _begun_segment(self, first_seq: int) -> Segment:
        """Make the last segment, open for appending.  Raises OSError; then there is none."""
        path = self._folder / f"{first_seq:012d}{SUFFIX}"
        writer = Segment.begun(path, sync=True)
        self._segments.append(_Numbered(path, first_seq))
        return writer

    def _acked_before(self) -> int:
        try:
            return self._cursor.read() or 0
        except DamagedCursor as error:
            raise SpoolError(f"{error}; remove it, and what the service has is sent again") from error

    def _check_consecutive(self) -> None:
        for left, right in zip(self._segments, self._segments[1:], strict=False):
            if left.next_seq != right.first_seq:
                raise SpoolError(f"{self._folder}: events {left.next_seq} to {right.first_seq - 1} are missing")


class _Numbered:
    """A segment: the numbers of its lines, and where each of them begins."""

    def __init__(self, path: Path, first_seq: int) -> None:
        self.path = path
        self.first_seq = first_seq
        self._ends = [0]
        self.cut_lines = 0

    @classmethod
    def opened(cls, path: Path, acked: int) -> "_Numbered":
        """Read a segment of an earlier attempt and cut off what is no event of the expected number.

        Lines up to ``acked`` only count: nobody reads them any more.
        """
        segment = cls(path, int(path.stem))
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n") or (segment.next_seq > acked and _seq_of(line) != segment.next_seq):
                    segment.cut_lines = sum(damaged.endswith(b"\n") for damaged in (line, *file))
                    break
                segment.add([line[:-1]])
        if segment.size != path.stat().st_size:
            Segment.reopened(path, size=segment.size).close()
        return segment

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self._ends) - 1

    @property
    def size(self) -> int:
        return self._ends[-1]

    def add(self, lines: Sequence[bytes]) -> None:
        self._ends += line_ends(lines, self.size)

    def span(self, first_seq: int, max_events: int, max_bytes: int) -> tuple[int, int]:
        """Begin and end (bytes) of the lines from ``first_seq``; at least one line."""
        first = first_seq - self.first_seq
        last = min(first + max_events, len(self._ends) - 1)
        while last > first + 1 and self._ends[last] - self._ends[first] > max_bytes:
            last -= 1
        return self._ends[first], self._ends[last]


def _seq_of(line: bytes) -> int | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event.get("seq") if isinstance(event, dict) else None


def _locked(path: Path, timeout_s: float) -> BinaryIO:
    file = path.open("ab")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise SpoolError(f"another process is still writing the events of this run ({path})") from None
            time.sleep(0.1)
