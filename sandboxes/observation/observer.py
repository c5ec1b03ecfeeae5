"""The worker's end of its one observer process, which is started with the first observed sandbox.

A process of its own: answers must not wait for a worker's event loop or its GIL.  It ends with the worker; if it
ends before, its sandboxes are lost (``Observation``) and the next one gets a new observer.
"""

import atexit
import json
import os
import socket
import subprocess
import threading
from pathlib import Path

import sandboxes
from sandboxes import owner
from sandboxes.backends.namespaces.arguments import SANDBOX_PYTHON

ROOT = str(Path(sandboxes.__file__).parent.parent)
# The standard library first: nothing that lies beside Palestra can take its place.
START = f"import sys; sys.path.append({ROOT!r}); from sandboxes.observation.server import main; main()"
END_S = 5.0


class Observer:
    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with theirs:
            # Not -m: an environment's packages and settings are nothing to it.
            self.process = subprocess.Popen(
                [SANDBOX_PYTHON, "-I", "-S", "-B", "-c", START, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env={owner.VARIABLE: owner.mark()},
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def doing(self) -> str:
        """Return where it is, for whoever waited too long: its state, what it sleeps in, and for how long it ran."""
        folder = Path(f"/proc/{self.process.pid}")
        try:
            state, *_, user, system = (folder / "stat").read_text().rpartition(")")[2].split()[:13]
            where = (folder / "wchan").read_text() or "nothing"
        except OSError as error:
            return f"it cannot be looked at: {error.strerror}"
        return f"it is in state {state}, sleeps in {where}, and has used {user} + {system} ticks"

    def attach(self, listener: int, reports: int, agent: int, tasks: int) -> None:
        """Hand a sandbox over.  Both descriptors stay the caller's to close.  Raises ``OSError``."""
        socket.send_fds(self._control, [json.dumps({"agent": agent, "tasks": tasks}).encode()], [listener, reports])

    def close(self) -> None:
        """It ends when we hang up; wait for it, so that no dead process stays."""
        self._control.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """In a fork: it is the parent's."""
        self._control.close()
        self.process.returncode = 0  # so that nobody here waits for it


_observer: Observer | None = None
_mutex = threading.Lock()


def observer() -> Observer:
    """The process's one observer, alive.  Raises ``OSError`` if none can be started."""
    global _observer
    with _mutex:
        if _observer is not None and not _observer.alive:
            _observer.close()
            _observer = None
        if _observer is None:
            _observer = Observer()
        return _observer


def _end() -> None:
    global _observer
    if _observer is not None:
        _observer.close()
        _observer = None


def _forget() -> None:
    global _observer, _mutex
    _mutex = threading.Lock()
    if _observer is not None:
        _observer.forget()
        _observer = None


atexit.register(_end)
os.register_at_fork(after_in_child=_forget)
