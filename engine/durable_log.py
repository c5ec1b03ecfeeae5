"""The one format of every log that must outlive the process which writes it.

    folder/<segment>.jsonl     lines: the JSON of one entry each, UTF-8, and a newline
    folder/<cursor>            how far the log's reader is, replaced whole

    one writer ──► its segments, begun one after the other ──► one reader, with a cursor
    another    ──► its own                                 ──┘

The rules, for whoever writes and reads one:

- **Whole lines.**  A line is an entry as soon as its newline stands there.  What follows the last newline
  is a *torn tail*: a reader waits for the rest of it, and a writer that opens the segment again cuts it off.
- **All or nothing.**  ``Segment.append`` writes all its lines or none: what a failed write left is cut off.
  Where not even that can be done the segment has *ended*, torn, and its writer begins another.
- **fsync.**  With ``sync`` the lines are on the disk when ``append`` returns, and a power cut spares them.
  Without, they are the kernel's: a killed process loses nothing, a power cut perhaps the last moments.
- **Damage.**  A whole line that is no entry was spoilt by the disk.  In a log whose entries stand for
  themselves it costs itself only; in one whose entries are numbered it ends what can be read.
- **Rotation.**  Nothing is appended to a segment once the next of its writer has begun, and their names sort in
  that order.  So one that has a successor may be removed once it is read to its end.
- **Cursor.**  It is written after what was read is safe elsewhere: a reader that is killed in between reads
  some lines again, and never misses one.  So does one whose cursor the disk has spoilt.

This module knows no entry: what a line says, its writer and its reader agree on.
"""

import errno
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from engine.disk import fsync, write_durably

SUFFIX = ".jsonl"
READ_BYTES = 2**20
"""How much a reader takes at once; a line may be longer."""

CursorT = TypeVar("CursorT")
log = logging.getLogger(__name__)


class DamagedCursor(Exception):
    """A cursor's file holds something else; the message says which file and what stands there."""


class Segment:
    """One file of a log, open for its only writer.  Not for several threads at once."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.size = size
        """Bytes of whole lines."""
        self.ended = False
        """Nothing can be appended any more."""
        self._descriptor = descriptor

    @classmethod
    def begun(cls, path: Path, *, sync: bool) -> "Segment":
        """An empty segment.  Raises OSError, also where there is one that is not empty; then nothing is made."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if os.fstat(descriptor).st_size:
            os.close(descriptor)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        try:
            if sync:
                fsync(path.parent)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        return cls(path, descriptor, 0)

    @classmethod
    def reopened(cls, path: Path, *, size: int) -> "Segment":
        """A segment of an earlier process, of which the first ``size`` bytes are whole lines: the rest is cut off."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        return cls(path, descriptor, size)

    def append(self, lines: Sequence[bytes], *, sync: bool) -> None:
        """Write ``lines``, each without its newline: all of them or, if this raises OSError, none."""
        if self.ended:
            raise OSError(errno.EBADF, "the segment has ended", str(self.path))
        content = b"".join(line + b"\n" for line in lines)
        try:
            _write_all(self._descriptor, content)
            if sync:
                os.fsync(self._descriptor)
        except BaseException:
            self._cut()
            raise
        self.size += len(content)

    def close(self) -> None:
        """Twice is fine."""
        if not self.ended:
            self.ended = True
            os.close(self._descriptor)

    def _cut(self) -> None:
        try:
            os.ftruncate(self._descriptor, self.size)
        except OSError:
            self.close()


class LogWriter:
    """One writer of a log that several write: its segments ``<name>-<number>.jsonl``, made when they are needed.

    Not for several threads at once.  A line is not fsynced.
    """

    def __init__(self, folder: Path, name: str, *, segment_bytes: int) -> None:
        self._folder = folder
        self._name = name
        self._segment_bytes = segment_bytes
        self._number = 0
        self._segment: Segment | None = None

    def append(self, line: bytes) -> None:
        """Raises OSError, e.g. on a full disk; then the line does not stand there."""
        segment = self._segment if self._segment is not None else self._begun()
        try:
            segment.append([line], sync=False)
        finally:
            if segment.ended or segment.size >= self._segment_bytes:
                self.close()

    def close(self) -> None:
        """End the segment; another line begins the next one."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _begun(self) -> Segment:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._segment = Segment.begun(segment_path(self._folder, self._name, self._number + 1), sync=False)
        self._number += 1
        return self._segment


@dataclass(frozen=True, slots=True)
class Piece:
    """Some whole lines of a segment, and where they end."""

    path: Path
    lines: list[bytes]
    """Without their newlines."""
    end: int
    """In bytes."""


class LogReader:
    """The reader of a log that several write.  Not for several threads at once.

    Whoever has taken in the lines of a piece says so with ``passed``; others are given again.  A segment that was
    passed to its end is removed once its writer has begun another.
    """

    def __init__(self, folder: Path, cursor: Path) -> None:
        self._folder = folder
        self._cursor: Cursor[dict[str, int]] = Cursor(cursor, TypeAdapter(dict[str, int]), sync=False)
        self._passed = self._passed_before()

    def pieces(self) -> Iterator[Piece]:
        """All that stands there now, segment after segment.  A torn tail comes when it is whole."""
        paths = segments(self._folder)  # listed before anything is read: what has a successor here grows no more
        newest = {writer_of(path): path for path in paths}
        for path in paths:
            end = self._passed.get(path.name, 0)
            while content := whole_lines(path, end):
                end += len(content)
                yield Piece(path, content[:-1].split(b"\n"), end)
            if newest[writer_of(path)] != path and self._passed.get(path.name, 0) == end:
                self._remove(path)

    def passed(self, piece: Piece) -> None:
        """Remember that ``piece`` need not be read again.  Raises OSError; then it may be."""
        self._passed[piece.path.name] = piece.end
        self._cursor.write(self._passed)

    def _passed_before(self) -> dict[str, int]:
        try:
            return self._cursor.read() or {}
        except DamagedCursor as error:
            log.warning("%s: what was read before is read again", error)
            return {}

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        if self._passed.pop(path.name, None) is not None:
            self._cursor.write(self._passed)


class Cursor(Generic[CursorT]):
    """How far a reader is, in a small file."""

    def __init__(self, path: Path, kind: TypeAdapter[CursorT], *, sync: bool) -> None:
        self._path = path
        self._kind = kind
        self._sync = sync

    def read(self) -> CursorT | None:
        """None where nothing was ever written.  Raises DamagedCursor."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return self._kind.validate_json(content, strict=True)
        except ValidationError as error:
            raise DamagedCursor(f"{self._path} does not say how far was read ({content[:20]!r})") from error

    def write(self, value: CursorT) -> None:
        content = self._kind.dump_json(value)
        if self._sync:
            write_durably(self._path, content)
        else:
            beside = self._path.with_name(self._path.name + ".partial")
            beside.write_bytes(content)
            beside.replace(self._path)


def segments(folder: Path) -> list[Path]:
    """Those of all writers, each writer's in the order in which they were begun."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def segment_path(folder: Path, writer: str, number: int) -> Path:
    return folder / f"{writer}-{number:06d}{SUFFIX}"


def writer_of(path: Path) -> str:
    """Whose segment it is; one that bears no number is the only one of its writer."""
    writer, mark, number = path.stem.rpartition("-")
    return writer if mark and number.isdecimal() else path.stem


def whole_lines(path: Path, start: int) -> bytes:
    """Whole lines from byte ``start`` on: about ``READ_BYTES``, at least one if there is one, none of a torn tail."""
    with path.open("rb") as file:
        file.seek(start)
        content = b""
        while block := file.read(READ_BYTES):
            content += block
            if (end := content.rfind(b"\n")) >= 0:
                return content[: end + 1]
    return b""


def line_ends(lines: Iterable[bytes], start: int = 0) -> Iterator[int]:
    """Yield where each of ``lines`` ends with its newline, in bytes."""
    for line in lines:
        start += len(line) + 1
        yield start


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
