"""Processes that serve the one that started them, and end with it."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

CODE = Path(__file__).parents[1]
"""Where the package ``engine`` is found."""
_PR_SET_PDEATHSIG = 1


def started_at(end: socket.socket, module: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """A process of this module, which is given the descriptor of its end of a pair, and these arguments."""
    command = [sys.executable, "-m", module, str(end.fileno()), *arguments]
    given = os.environ.get("PYTHONPATH")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(CODE), *([given] if given else [])])}
    # In a session of its own: a Ctrl-C is for the process that started it to hear, which then ends it.
    return subprocess.Popen(
        command, env=environment, pass_fds=(end.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True
    )


def end_with_parent(parent: int) -> None:
    """The kernel ends this process when its parent ends; at once where that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent process has ended")
