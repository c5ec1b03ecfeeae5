"""Keeps the services of one home alive, in one thread and one loop.

    lock the home -> clear leftovers -> servers -> migrate -> web, worker, beat -> (tick, tick ...) -> stop

``tick`` is called about five times a second and never waits.  Whatever dies is restarted after its
back-off; orphans of dead services end up as our children (subreaper) and are ended.  The state that
``./dev status`` shows is written to a file once a second: there is no control port.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from devtools import process, ray_head
from devtools.checks import check_machine
from devtools.errors import Unfit
from devtools.home import ROOT, Home, HomeLock, environment_for
from devtools.measure import MemoryWatch
from devtools.ports import hold_web_port
from devtools.process import Service, ServiceProcess
from devtools.services import embedded_servers, own_processes

TICK_S = 0.2
ORPHAN_GRACE_S = 10.0
START_TIMEOUT_S = 180.0
DEATHS_BEFORE_GIVING_UP = 4
"""It counts while starting; later the supervisor never gives up."""


class Stopped(Exception):
    """Somebody asked us to stop."""


class Supervisor:
    def __init__(self, home: Home, *, show: Callable[[str], None]) -> None:
        self.home = home
        self.memory = MemoryWatch()
        self.phase = "starting"
        self.url = self.ray_jobs_url = ""
        self.environment: dict[str, str] = {}
        self.extra_state: dict[str, Any] = {}
        """What the caller wants ``./dev status`` to see, e.g. the runs."""
        self._show = show
        self._lock = HomeLock(home)
        self._services: list[ServiceProcess] = []
        self._helpers: set[int] = set()
        self._orphans: dict[int, float] = {}
        self._complained: set[str] = set()
        self._stop_asked = False
        self._next_state_at = self._next_rotation_at = 0.0
        self._web_socket: socket.socket | None = None

    # --- life -----------------------------------------------------------------------------------
    def start(self) -> None:
        """Everything up, or ``Unfit``.  ``Stopped`` when a signal comes meanwhile."""
        self._take_home()
        check_machine(self.home.folder)
        self._catch_signals()
        process.adopt_orphans()
        self._clear_leftovers()
        self._web_socket = hold_web_port(self.home.folder / "port", show=self._show)
        port = self._web_socket.getsockname()[1]
        ports = ray_head.choose_ports()
        self.home.secret("ray/auth_token")
        self.environment = environment_for(self.home, port=port, ray_jobs_port=ports["dashboard-port"])
        self.environment |= {"TMPDIR": str(self.home.temporary)} | ray_head.environment(ports)
        self.url, self.ray_jobs_url = self.environment["PALESTRA_BASE_URL"], self.environment["PALESTRA_RAY_JOBS"]
        self._start(embedded_servers(self.home, ports))
        self._wait_for("postgres", "valkey")
        self.manage("migrate", "--noinput", "--verbosity", "0")
        self._start(own_processes(self.home, self._web_socket))

    def finish_start(self) -> None:
        """Wait until the last service is up."""
        self._wait_for(*(service.service.name for service in self._services))
        self.phase = "ready"
        self._write_state()

    def tick(self) -> None:
        """One round of looking after everything.  Raises ``Stopped`` once a signal asked for it."""
        if self._stop_asked:
            raise Stopped
        for service in self._services:
            service.tick()
            self._complain_about(service)
        self._end_orphans()
        self.memory.tick()
        self._write_state_now_and_then()

    def stop(self) -> None:
        """The engines first, who may still say what they did; then the web, then its stores.  Nothing is left."""
        if not self._lock.is_mine:
            return  # nothing was started, and the state file is the other supervisor's
        self.phase = "stopping"
        self._write_state()
        for group in ({"beat", "worker", "chats", "serving", "ray"}, {"web"}, {"valkey", "postgres"}):
            members = [service for service in self._services if service.service.name in group]
            for member in members:
                member.begin_stop()
            while any(not member.is_stopped() for member in members):
                time.sleep(0.05)
        self._kill_everything_below()
        if self._web_socket is not None:
            self._web_socket.close()
        self.phase = "stopped"
        self._write_state()
        shutil.rmtree(self.home.sockets, ignore_errors=True)
        self._lock.release()

    def troubled_services(self) -> list[str]:
        return [service.service.name for service in self._services if not service.ready]

    def restarts(self) -> dict[str, int]:
        return {service.service.name: service.restarts for service in self._services if service.restarts}

    # --- one-off commands -----------------------------------------------------------------------
    def manage(self, *arguments: str) -> str:
        """Run ``manage.py`` to its end while looking after the services; returns what it printed.

        Raises ``Unfit`` with the last thing it said when it fails.
        """
        log = self.home.logs / "manage.log"
        command = [sys.executable, str(ROOT / "manage.py"), *arguments]
        with open(log, "ab") as errors:
            running = subprocess.Popen(
                command,
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._helpers.add(running.pid)
        try:
            while running.poll() is None:
                self.tick()
                time.sleep(0.05)
        finally:
            if running.poll() is None:
                running.kill()
            output, _ = running.communicate()
            self._helpers.discard(running.pid)
        if running.returncode:
            complaint = process.last_lines(log, 1) or [output.strip()[-300:]]
            raise Unfit(f"manage.py {arguments[0]} failed: {complaint[-1]} (see ./dev logs manage)")
        return output

    # --- parts ----------------------------------------------------------------------------------
    def _take_home(self) -> None:
        self.home.prepare()
        if not self._lock.acquire():
            other = self.home.state()
            raise Unfit(
                f"already up in {self.home.folder}: pid {other.get('pid', '?')}, {other.get('url') or 'starting'}; "
                "./dev status shows it, ./dev down stops it"
            )
        self._write_state()

    def _clear_leftovers(self) -> None:
        """End services of a supervisor that was killed, and what they started.  The lock is ours, so nobody needs them.

        A pid may be somebody else's by now.  While anybody is left of a session nobody gets the pid of its leader.
        """
        for name, known in self.home.state().get("leftovers", {}).items():
            if known.get("boot_id") != process.boot_id():
                continue
            pid, born = known["pid"], process.start_time_of(known["pid"])
            if born is None:  # it may have been reused and free again: what started later is a stranger's
                process.kill_session(pid, started_by=known["last_starts"])
            elif born == known["start_time"]:
                self._show(f"ending {name} (pid {pid}), which an earlier ./dev left behind")
                process.send_signal(pid, signal.Signals(known["stop_signal"]))
                _wait_until_gone(pid, born)
                process.kill_session(pid)
        shutil.rmtree(self.home.temporary)
        self.home.prepare()

    def _start(self, services: list[Service]) -> None:
        for service in services:
            log = self.home.logs / f"{service.name}.log"
            one = ServiceProcess(service, log=log, environment=self.environment, folder=ROOT)
            self._services.append(one)
            one.start()
        self._write_state()

    def _wait_for(self, *names: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        wanted = [service for service in self._services if service.service.name in names]
        while not all(service.ready for service in wanted):
            self.tick()
            for service in wanted:
                too_late = service.quick_deaths >= DEATHS_BEFORE_GIVING_UP or time.monotonic() > deadline
                if too_late and not service.ready:
                    complaint = "\n".join(service.last_lines())
                    raise Unfit(f"{service.service.name} does not start; its last lines:\n{complaint}")
            time.sleep(TICK_S / 4)

    def _complain_about(self, one: ServiceProcess) -> None:
        name = one.service.name
        if one.is_hopeless and name not in self._complained:
            self._complained.add(name)
            self._show(f"{name} keeps dying; its last lines:\n" + "\n".join(one.last_lines()))
        elif one.ready and not one.quick_deaths:
            self._complained.discard(name)

    def _end_orphans(self) -> None:
        """Whoever lost its parent came to us: reap it, or after a while end it."""
        known = {service.pid for service in self._services} | self._helpers
        strangers = [pid for pid in process.children() if pid not in known and not process.reap(pid)]
        now = time.monotonic()
        self._orphans = {pid: self._orphans.get(pid, now) for pid in strangers}
        for pid, since in self._orphans.items():
            if now - since > 2 * ORPHAN_GRACE_S:
                process.send_signal(pid, signal.SIGKILL)
            elif now - since > ORPHAN_GRACE_S:
                process.send_signal(pid, signal.SIGTERM)

    def _kill_everything_below(self) -> None:
        """Until we have no child: killing one makes its children ours."""
        deadline = time.monotonic() + 10
        while (left := process.children()) and time.monotonic() < deadline:
            for pid in left:
                if not process.reap(pid):
                    process.send_signal(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _catch_signals(self) -> None:
        def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
            self._stop_asked = True

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, ask_to_stop)

    # --- state ----------------------------------------------------------------------------------
    def _write_state_now_and_then(self) -> None:
        now = time.monotonic()
        if now >= self._next_state_at:
            self._next_state_at = now + 1
            self._write_state()
        if now >= self._next_rotation_at:
            self._next_rotation_at = now + 10
            for log in self.home.logs.glob("*.log"):
                with self._going_on_without(log.with_suffix(".log.1")):
                    process.rotate(log)

    def _write_state(self) -> None:
        leftovers = self.home.state().get("leftovers", {}) if not self._services else self._leftovers()
        with self._going_on_without(self.home.state_file):
            write_json(self.home.state_file, {
                "pid": os.getpid(),
                "phase": self.phase,
                "url": self.url,
                "ray_jobs_url": self.ray_jobs_url,
                "peak_rss_mib": round(self.memory.peak_mib),
                "services": [self._row(service) for service in self._services],
                "leftovers": leftovers,
                **self.extra_state,
            })  # fmt: skip

    @contextmanager
    def _going_on_without(self, file: Path) -> Iterator[None]:
        """A full disk ends no service: it is shown once that the file is not written."""
        try:
            yield
        except OSError as error:
            if file.name not in self._complained:
                self._complained.add(file.name)
                self._show(f"cannot write {file}: {error.strerror}; the services go on without it")
        else:
            self._complained.discard(file.name)

    def _row(self, one: ServiceProcess) -> dict[str, Any]:
        state = "up" if one.ready else "starting" if one.pid else "waiting to restart"
        return {
            "name": one.service.name,
            "state": state,
            "pid": one.pid,
            "started_at": one.started_at,
            "restarts": one.restarts,
            "rss_mib": round(self.memory.by_session_mib.get(one.pid or -1, 0.0)),
        }

    def _leftovers(self) -> dict[str, Any]:
        """What the next supervisor must look for, should this one be killed."""
        return {
            service.service.name: {
                "pid": service.pid,
                "start_time": process.start_time_of(service.pid),
                "boot_id": process.boot_id(),
                "last_starts": process.ticks(from_now_s=ORPHAN_GRACE_S),
                "stop_signal": int(service.service.stop_signal),
            }
            for service in self._services
            if service.pid is not None
        }


def _wait_until_gone(pid: int, start_time: int, *, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while process.start_time_of(pid) == start_time and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.start_time_of(pid) == start_time:
        process.send_signal(pid, signal.SIGKILL)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(content, indent=1))
    fresh.chmod(0o600)
    fresh.replace(path)
