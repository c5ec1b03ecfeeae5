"""Whose a sandbox is: a mark on what a sandbox leaves on its host, by which a later process finds what a dead one left.

``<pid>:<ticks>:<boot>:<pid namespace>`` names one process for good.  Process ids mean something within one pid
namespace of one boot only: about an owner in another one nothing is known, and what it owns is not touched.
"""

import os
from functools import cache

VARIABLE = "PALESTRA_SANDBOX_OWNER"


def mark() -> str:
    """The mark of what this process makes."""
    return f"{os.getpid()}:{started_ticks(os.getpid())}:{_machine()}"


def is_dead(found: str) -> bool:
    """Return whether the owner who left this mark is gone for certain."""
    pid, _, rest = found.partition(":")
    ticks, _, machine = rest.partition(":")
    if machine != _machine() or not pid.isdigit() or not ticks.isdigit():
        return False
    return started_ticks(int(pid)) != int(ticks)


def started_ticks(pid: int) -> int | None:
    """When it started, in clock ticks since boot; None if there is no such process, or only its remains."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    ended = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1  # other threads may outlive the main one
    return None if ended else int(fields[19])


@cache
def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().decode().strip()


def _machine() -> str:
    return f"{_boot()}:{os.stat('/proc/self/ns/pid').st_ino}"
