"""How much memory and disk the stack uses."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from devtools.process import session_of

MIB = 2**20
SHARE_OF_TIME = 0.02
"""Sampling may take this share of one core at most; it is slowed down to stay below."""


class MemoryWatch:
    """Proportional memory (PSS: shared pages count once over all) of this process and everything below it."""

    def __init__(self) -> None:
        self.peak_mib = 0.0
        self.by_session_mib: dict[int, float] = {}
        self._next_at = 0.0

    def tick(self) -> None:
        begin = time.monotonic()
        if begin < self._next_at:
            return
        sample: dict[int, float] = {}
        for pid in descendants():
            session = session_of(pid) or 0
            sample[session] = sample.get(session, 0.0) + proportional_bytes(pid) / MIB
        self.by_session_mib = sample
        self.peak_mib = max(self.peak_mib, sum(sample.values()))
        now = time.monotonic()
        self._next_at = begin + max(1.0, (now - begin) / SHARE_OF_TIME)


def descendants() -> list[int]:
    return [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]


def proportional_bytes(pid: int) -> int:
    """PSS, or 0 for a process that is gone; RSS where the kernel does not let us look."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except PermissionError:
        try:
            rss: int = psutil.Process(pid).memory_info().rss
            return rss
        except psutil.NoSuchProcess:
            return 0
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended while we looked
    return 0


def disk_bytes(folders: Iterable[Path]) -> int:
    """Allocated bytes below the folders; each hard-linked file counts once."""
    seen: dict[tuple[int, int], int] = {}
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                try:
                    found = os.lstat(os.path.join(parent, name))
                except FileNotFoundError:
                    continue  # removed while we looked
                seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(seen.values())
