"""Runs one command and takes it along: when whoever started this is gone, however it went, so is the command.

    python keeper.py COMMAND [ARGUMENT ..]

The starter holds the other end of this process's stdin, which the kernel closes when the starter dies.  SGLang is a
tree of processes; it runs in a process group of its own, and all of it is killed.  Run by its path, so that nothing of
the engine is imported here.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys

LOOK_S = 0.5
PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_the_keeper)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        while server.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], LOOK_S)
            if readable and not os.read(sys.stdin.fileno(), 1):
                return 0
        return server.returncode
    finally:
        kill_group(server.pid)
        server.wait()


def _die_with_the_keeper() -> None:
    os.setsid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_group(leader: int) -> None:
    """Every process of the group, if there still is one."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
