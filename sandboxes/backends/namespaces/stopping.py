"""Stopping every process of a sandbox by signals, where no cgroup can freeze it.

Process 1 is stopped first.  From then on orphans are not buried any more, so that whoever forks and exits to
outrun us uses up the sandbox's processes, and stands still in the end.  A stopped guest is not continued by anybody:
all who could signal it are stopped, and the filter leaves no call by which a guest could have the kernel send it
SIGCONT later (seccomp.py).
"""

import os
import signal
import time
from contextlib import suppress

from sandboxes.backends.namespaces.inspection import Member, family, member

STOPPED = "TZX"
STILL = STOPPED + "D"
"""D: waits in the kernel, and with the signal pending stops before its next own instruction."""
STOP_S = 5.0
PAUSE_S = 0.001


def stop_all(init: int, pidfd: int) -> None:
    """Return when nobody runs.  Raises ``TimeoutError``; ``ProcessLookupError`` if the sandbox is gone."""
    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    give_up_s = time.monotonic() + STOP_S
    known: set[int] = set()
    while True:
        found = family(init)
        moving = [process for process in found if process.state not in STILL]
        for process in found:
            if process.state not in STOPPED and (process in moving or process.pid not in known):
                _stop(process)
        pids = {process.pid for process in found}
        if not moving and pids == known:
            return
        known = pids
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"{len(moving)} processes of a sandbox did not stop within {STOP_S:g} s")
        time.sleep(PAUSE_S)


def _stop(process: Member) -> None:
    with suppress(ProcessLookupError):  # it ended by itself
        pidfd = os.pidfd_open(process.pid)
        try:
            now = member(process.pid)
            if now is not None and now.started == process.started:  # the number may be somebody else's by now
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        finally:
            os.close(pidfd)
