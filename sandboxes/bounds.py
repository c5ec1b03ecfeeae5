"""What may be asked of any sandbox.  Looked at before the sandbox hears of it: a caller's slip must not cost a
sandbox."""

import errno
import os

LONGEST_S = 86400.0
MOST_SENT_BYTES = 64 * 2**20
"""Code or standard input is no larger; more goes into files."""
MOST_READ_BYTES = 2**30


def wait_s(timeout_s: float | None, default_s: float) -> float:
    """Raises ``ValueError`` for what is no time to wait, not a number included."""
    if timeout_s is None:
        return default_s
    if not 0 < timeout_s <= LONGEST_S:
        raise ValueError(
            f"timeout_s = {timeout_s!r}: use more than 0 and at most {LONGEST_S:g} s, or None for the spec's"
        )
    return timeout_s


def sent(field: str, content: bytes) -> bytes:
    if len(content) > MOST_SENT_BYTES:
        raise ValueError(f"{field} has {len(content)} bytes: send at most {MOST_SENT_BYTES}, and more in files")
    return content


def read_limit(limit_bytes: int) -> int:
    if not 0 <= limit_bytes <= MOST_READ_BYTES:
        raise ValueError(f"limit_bytes = {limit_bytes!r}: use 0 to {MOST_READ_BYTES}")
    return limit_bytes


def fits(content: bytes, disk_mib: int, path: str) -> bytes:
    """Raises the ``OSError`` that writing it would come to, had the agent the memory to hold it."""
    if len(content) > disk_mib * 2**20:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    return content
