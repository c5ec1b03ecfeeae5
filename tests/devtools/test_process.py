"""Services with real processes: restart, stop, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from devtools import process
from devtools.process import Service, ServiceProcess

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
]
WITH_CHILD = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"]


def service_process(folder: Path, command: list[str], **options: object) -> ServiceProcess:
    service = Service("one", command, is_ready=lambda: True, **options)  # type: ignore[arg-type]
    return ServiceProcess(service, log=folder / "one.log", environment=dict(os.environ), folder=folder)


def tick_until(one: ServiceProcess, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        one.tick()
        time.sleep(0.02)


def stop(one: ServiceProcess) -> None:
    one.begin_stop()
    deadline = time.monotonic() + 30
    while not one.is_stopped():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_service_is_restarted(tmp_path: Path) -> None:
    one = service_process(tmp_path, SLEEP)
    one.start()
    first = one.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    tick_until(one, lambda: one.pid not in (None, first))
    assert one.restarts == 1
    stop(one)


def test_children_of_a_killed_service_die_before_it_is_restarted(tmp_path: Path) -> None:
    one = service_process(tmp_path, WITH_CHILD)
    one.start()
    assert one.pid is not None
    parent = psutil.Process(one.pid)
    tick_until(one, lambda: bool(parent.children()))
    child = parent.children()[0].pid
    os.kill(one.pid, signal.SIGKILL)
    tick_until(one, lambda: one.restarts == 1)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    stop(one)


def test_a_service_that_dies_at_once_waits_longer_each_time_and_becomes_hopeless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "BACKOFF_S", (0.01, 0.02))
    one = service_process(tmp_path, [sys.executable, "-S", "-c", "print('cannot live'); raise SystemExit(1)"])
    one.start()
    tick_until(one, lambda: one.is_hopeless)
    assert one.quick_deaths == process.HOPELESS_DEATHS
    assert one.last_lines(1) == ["cannot live"]
    stop(one)


def test_a_service_that_does_not_obey_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    one = service_process(tmp_path, STUBBORN, stop_timeout_s=0.3)
    one.start()
    tick_until(one, lambda: one.last_lines() == ["deaf"])
    pid = one.pid
    assert pid is not None
    stop(one)
    assert process.start_time_of(pid) is None


def test_services_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert supervisor.stdout is not None
    pid = int(supervisor.stdout.readline())
    born = process.start_time_of(pid)
    supervisor.kill()
    supervisor.wait()
    deadline = time.monotonic() + 20
    while process.start_time_of(pid) == born:
        assert time.monotonic() < deadline, "the service outlived its supervisor"
        time.sleep(0.02)


_SUPERVISOR = """
import os, signal, sys, time
from pathlib import Path
from devtools.process import spawn
folder = Path(sys.argv[1])
environment = dict(os.environ)
child = spawn(["sleep", "600"], log=folder / "log", environment=environment, folder=folder, death_signal=signal.SIGTERM)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_rotation_keeps_what_was_written_and_lets_the_writer_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_LIMIT_BYTES", 10)
    log = tmp_path / "one.log"
    with open(log, "ab", buffering=0) as writer:
        writer.write(b"the first part\n")
        process.rotate(log)
        writer.write(b"the rest\n")
    assert (tmp_path / "one.log.1").read_text() == "the first part\n"
    assert log.read_text() == "the rest\n"


def test_a_start_time_names_one_process_for_good() -> None:
    assert process.start_time_of(os.getpid()) == process.start_time_of(os.getpid())
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert process.start_time_of(ended.pid) is None
