"""What the supervisor does of itself, without the services of a whole Palestra."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psutil
import pytest

from devtools import process, verbs
from devtools.home import ROOT, Home, socket_folder_of
from devtools.supervisor import Supervisor, write_json


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path, socket_folder_of(tmp_path))
    home.prepare()
    yield home
    shutil.rmtree(home.sockets, ignore_errors=True)


@pytest.fixture
def session() -> Iterator["subprocess.Popen[str]"]:
    """A process that leads a session, and its child, which repeats what it reads; the child's pid comes first."""
    command = ["sh", "-c", "exec 3<&0; cat <&3 & echo $!; wait"]
    leader = subprocess.Popen(command, start_new_session=True, stdin=PIPE, stdout=PIPE, text=True, bufsize=1)
    yield leader
    process.kill_session(leader.pid)
    leader.communicate()


def line_of(session: "subprocess.Popen[str]") -> str:
    assert session.stdout is not None
    return session.stdout.readline()


def is_alive_below(session: "subprocess.Popen[str]") -> bool:
    assert session.stdin is not None
    session.stdin.write("alive\n")
    return line_of(session) == "alive\n"


def clear(home: Home, pid: int, **known: Any) -> None:
    """What the next ``./dev up`` does first, where ``pid`` was the worker of a supervisor that was killed."""
    leftover = {
        "pid": pid, "start_time": process.start_time_of(pid), "boot_id": process.boot_id(),
        "last_starts": process.ticks(from_now_s=0), "stop_signal": int(signal.SIGTERM),
    }  # fmt: skip
    write_json(home.state_file, {"pid": 1, "leftovers": {"worker": leftover | known}})
    Supervisor(home, show=print)._clear_leftovers()


def assert_killed(pid: int) -> None:
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_service_that_outlived_its_supervisor_is_ended_with_its_children(
    home: Home, session: "subprocess.Popen[str]"
) -> None:
    child = int(line_of(session))
    with ThreadPoolExecutor(1) as reaper:  # as pid 1 reaps what lost its parent
        ended = reaper.submit(session.wait)
        clear(home, session.pid)
    assert ended.result() == -signal.SIGTERM
    assert_killed(child)


def test_children_of_a_service_that_is_gone_are_killed(home: Home, session: "subprocess.Popen[str]") -> None:
    child = int(line_of(session))
    session.kill()
    session.wait()
    clear(home, session.pid, start_time=1)
    assert_killed(child)


@pytest.mark.parametrize("known", [{"start_time": 1}, {"boot_id": "another"}], ids=["pid reused", "after a reboot"])
def test_a_session_of_somebody_else_is_left_alone(
    home: Home, session: "subprocess.Popen[str]", known: dict[str, Any]
) -> None:
    line_of(session)
    clear(home, session.pid, **known)
    assert is_alive_below(session)
    assert session.poll() is None


@pytest.mark.parametrize("known", [{"last_starts": 1}, {"boot_id": "another"}], ids=["pid reused", "after a reboot"])
def test_what_somebody_elses_service_left_is_left_alone(
    home: Home, session: "subprocess.Popen[str]", known: dict[str, Any]
) -> None:
    line_of(session)
    session.kill()
    session.wait()
    clear(home, session.pid, start_time=1, **known)
    assert is_alive_below(session)


def test_a_full_disk_ends_no_service_and_keeps_none_from_being_stopped(home: Home) -> None:
    """In a process of its own, since stopping kills whatever is below."""
    home.state_file.with_name("supervisor.json.new").mkdir()
    (home.logs / "web.log").write_bytes(b"longer than the limit")
    (home.logs / "web.log.1").mkdir()
    environment = os.environ | {"PALESTRA_HOME": str(home.folder)}
    done = subprocess.run(
        [sys.executable, "-c", _UNWRITABLE], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    complaints = [line.partition(": ")[0] for line in done.stdout.splitlines()[:-1]]
    assert complaints == [f"cannot write {home.state_file}", f"cannot write {home.logs}/web.log.1"], done.stderr
    assert done.stdout.splitlines()[-1] == "serves: True, is ended: True, holds the home: False"


_UNWRITABLE = """
import os
from pathlib import Path
from devtools import process
from devtools.home import Home
from devtools.process import Service, ServiceProcess
from devtools.screen import Screen
from devtools.supervisor import Supervisor

process.LOG_LIMIT_BYTES = 10
full, home = Screen(open("/dev/full", "w")), Home.from_environment()

def show(text):
    print(text, flush=True)
    full.show(text)

supervisor = Supervisor(home, show=show)
supervisor._take_home()
web = Service("web", ["sleep", "600"], is_ready=lambda: True)
one = ServiceProcess(web, log=home.logs / "web.log", environment=dict(os.environ), folder=home.folder)
one.start()
supervisor._services.append(one)
for _ in range(3):
    supervisor._next_state_at = supervisor._next_rotation_at = 0.0
    supervisor.tick()
pid = one.pid
supervisor.stop()
ended = process.start_time_of(pid) is None
print(f"serves: {pid is not None}, is ended: {ended}, holds the home: {supervisor._lock.is_mine}", flush=True)
os._exit(0)
"""


def test_exec_talks_to_the_ray_head_that_runs(home: Home) -> None:
    supervisor = Supervisor(home, show=print)
    supervisor.url, supervisor.ray_jobs_url = "http://127.0.0.1:8701", "http://127.0.0.1:43210"
    supervisor._write_state()
    environment = verbs._environment_of(home)
    assert environment["PALESTRA_RAY_JOBS"] == "http://127.0.0.1:43210"
    assert environment["PALESTRA_BASE_URL"] == "http://127.0.0.1:8701"
