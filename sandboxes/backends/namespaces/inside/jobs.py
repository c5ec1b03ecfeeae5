"""One program or one cell under way: its pipes, its clock, what it wrote so far."""

import _socket
import os
import time

CHUNK_BYTES = 65536
FLOOD_FACTOR = 8
FLOOD_FLOOR_BYTES = 2**20


def flood_bytes(limit_bytes: int) -> int:
    """Output at which a guest is stopped; between the limit and this, output is cut and the guest goes on."""
    return max(FLOOD_FACTOR * limit_bytes, FLOOD_FLOOR_BYTES)


class Capture:
    """The read end of a guest's output: keeps ``limit_bytes``, counts and drops the rest."""

    def __init__(self, fd: int, limit_bytes: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.limit_bytes = limit_bytes
        self.kept = bytearray()
        self.seen_bytes = 0
        self.ended = False

    def clear(self) -> None:
        """Drop what came so far, what is still in the pipe included."""
        self.drain()
        self.kept = bytearray()
        self.seen_bytes = 0

    def take(self) -> bool:
        """Read once; return whether there may be more now."""
        try:
            chunk = os.read(self.fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self.ended = True
            return False
        self.seen_bytes += len(chunk)
        room = self.limit_bytes - len(self.kept)
        if room > 0:
            self.kept += chunk[:room]
        return True

    def drain(self) -> None:
        """Take what the pipe holds.  A survivor that keeps writing cannot keep us here."""
        stop_at = self.seen_bytes + FLOOD_FLOOR_BYTES
        while self.take() and self.seen_bytes < stop_at:
            pass

    @property
    def truncated(self) -> bool:
        return self.seen_bytes > self.limit_bytes

    @property
    def flooded(self) -> bool:
        return self.seen_bytes > flood_bytes(self.limit_bytes)


class Feed:
    """The write end of a guest's input: what is still to be written to it."""

    def __init__(self, fd: int, content: bytes) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.rest = memoryview(content)

    def push(self) -> bool:
        """Write once; return whether anything is left to write."""
        try:
            self.rest = self.rest[os.write(self.fd, self.rest[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return True
        except OSError:
            return False  # the reader is gone: its choice
        return len(self.rest) > 0


class Job:
    """A request of the host that has not been answered yet."""

    def __init__(self, number: int, timeout_s: float, out: Capture, err: Capture) -> None:
        self.number = number
        self.started_s = time.monotonic()
        self.deadline_s = self.started_s + timeout_s
        self.out = out
        self.err = err
        self.decision = ""
        """Why we ended it: an outcome, or empty while it runs."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_s


class Program(Job):
    """A job with a process of its own."""

    pid = 0
    feed: Feed | None = None


class Cell(Job):
    """A job of the interpreter.  ``codes`` are run in turn; only the output of the last one is kept."""

    def __init__(
        self, number: int, timeout_s: float, out: Capture, err: Capture, codes: list[bytes], note: str
    ) -> None:
        super().__init__(number, timeout_s, out, err)
        self.codes = codes
        self.note = note
        self.nonce = b""
        """What the report of the code that runs must begin with; another one for each."""


class Interpreter:
    """The process that runs a user's cells, and our ends of its pipes."""

    def __init__(self, pid: int, cells: _socket.socket, reports: int, out: Capture, err: Capture) -> None:
        cells.setblocking(False)
        os.set_blocking(reports, False)
        self.pid = pid
        self.cells = cells
        """A socket and no pipe, so that descriptors can be sent along (copies.py)."""
        self.reports = reports
        self.out = out
        self.err = err
        self.used = False
        self.retired = False
        self.forged = False
        """Whether it has reported what it was not asked."""

    def read_report(self) -> bytes | None:
        """Return how the last cell ended; empty once it hung up; ``None`` if it said nothing yet."""
        try:
            return os.read(self.reports, 4096)
        except BlockingIOError:
            return None
