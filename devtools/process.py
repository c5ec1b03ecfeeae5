"""One service: a process that is kept alive, with its log.

A service leads a session of its own, so a Ctrl-C in the terminal reaches only the supervisor.
When the supervisor itself is killed, the kernel sends each service its stop signal.
"""

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Waits before the 1st, 2nd ... restart after quick deaths; the last one goes on."""
QUICK_S = 10.0
"""A service that lived longer than this starts its back-off anew."""
HOPELESS_DEATHS = 10
LOG_LIMIT_BYTES = 20 * 2**20

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Service:
    """What to run, and how to see that it works."""

    name: str
    command: Sequence[str]
    is_ready: Callable[[], bool]
    before_start: Callable[[], None] = lambda: None
    """Clears away what a dead predecessor left."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_s: float = 10.0
    inherits: tuple[int, ...] = ()
    """File descriptors that it gets, by the same numbers."""


class ServiceProcess:
    """Runs a service.  ``tick`` never blocks; ``start`` and ``begin_stop`` return at once."""

    def __init__(self, service: Service, *, log: Path, environment: dict[str, str], folder: Path) -> None:
        self.service = service
        self.log = log
        self.restarts = 0
        self.quick_deaths = 0
        self.ready = False
        self.started_at = 0.0
        self._environment = environment
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._start_again_at: float | None = None
        self._kill_at: float | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_hopeless(self) -> bool:
        return self.quick_deaths >= HOPELESS_DEATHS

    def start(self) -> None:
        self.service.before_start()
        self._process = spawn(
            self.service.command,
            log=self.log,
            environment=self._environment,
            folder=self._folder,
            death_signal=self.service.stop_signal,
            inherits=self.service.inherits,
        )
        self.started_at = time.time()
        self.ready = False
        self._start_again_at = None

    def tick(self) -> None:
        """Notice a death, restart when its wait is over, look for readiness."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._note_death(now)
        if self._start_again_at is not None and now >= self._start_again_at:
            self.restarts += 1
            self.start()
        if self._process is not None and not self.ready:
            self.ready = self.service.is_ready()

    def _note_death(self, now: float) -> None:
        assert self._process is not None
        kill_session(self._process.pid)
        lived_s = time.time() - self.started_at
        self.quick_deaths = self.quick_deaths + 1 if lived_s < QUICK_S else 0
        wait_s = BACKOFF_S[min(self.quick_deaths, len(BACKOFF_S) - 1)]
        self._process, self.ready, self._start_again_at = None, False, now + wait_s

    def begin_stop(self) -> None:
        self._start_again_at = None
        self._kill_at = time.monotonic() + self.service.stop_timeout_s
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.service.stop_signal)

    def is_stopped(self) -> bool:
        """After ``begin_stop``: whether it has ended; kills it when its time is over."""
        if self._process is None:
            return True
        if self._process.poll() is None:
            if self._kill_at is None or time.monotonic() < self._kill_at:
                return False
            self._process.kill()
            self._process.wait()
        kill_session(self._process.pid)
        self._process, self.ready = None, False
        return True

    def last_lines(self, count: int = 8) -> list[str]:
        return last_lines(self.log, count)


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    environment: dict[str, str],
    folder: Path,
    death_signal: signal.Signals,
    inherits: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own; ``death_signal`` reaches it when this process dies."""
    supervisor = os.getpid()

    def tie_to_supervisor() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != supervisor:  # it died before the line above
            os._exit(1)

    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=tie_to_supervisor,
            pass_fds=inherits,
        )


def adopt_orphans() -> None:
    """From now on, descendants whose parent dies become children of this process instead of pid 1's."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    pid = os.getpid()
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def reap(pid: int) -> bool:
    """Return whether the child ``pid`` had ended; its zombie is gone then."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def kill_session(session: int, *, started_by: float = math.inf) -> None:
    """Kill whoever is left of the session that ``session`` led, and started at ``started_by`` (``ticks``) or before."""
    for pid in pids_of_session(session):
        started = start_time_of(pid)
        if started is not None and started <= started_by:
            send_signal(pid, signal.SIGKILL)


def pids_of_session(session: int) -> list[int]:
    return [pid for pid in every_pid() if session_of(pid) == session]


def every_pid() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def start_time_of(pid: int) -> int | None:
    """In ``ticks``.  Together with the pid it names one process until the next boot."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])


def ticks(*, from_now_s: float) -> float:
    """Clock ticks from boot until so long from now."""
    return (time.clock_gettime(time.CLOCK_BOOTTIME) + from_now_s) * os.sysconf("SC_CLK_TCK")


def boot_id() -> str:
    """Another one after each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def send_signal(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself, which is what we wanted
        os.kill(pid, which)


def last_lines(log: Path, count: int) -> list[str]:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 16384))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []


def rotate(log: Path) -> None:
    """Keep one older file.  Services append, so cutting the file under them is safe."""
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        with open(log, "rb") as full, open(log.with_suffix(".log.1"), "wb") as older:
            while block := full.read(2**20):
                older.write(block)
        os.truncate(log, 0)
