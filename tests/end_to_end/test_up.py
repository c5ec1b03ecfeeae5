"""``./dev up`` and its way down: refusals, recovery, going on."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from devtools import postgres, valkey
from tests.end_to_end.stack import Stack, small_spec
from tests.end_to_end.test_kills import assert_complete
from tests.workers.secret_variables import SERVICES

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_a_second_up_in_the_same_home_is_refused_in_one_line(stack: Stack) -> None:
    second = stack.dev("up")
    assert second.returncode == 1
    assert second.stderr.count("\n") == 1
    assert f"pid {stack.pid}" in second.stderr
    assert stack.url in second.stderr


def test_everything_listens_on_loopback_only(stack: Stack) -> None:
    run_id = stack.launch(small_spec("listen", steps=8))
    stack.until_step(run_id, 2)
    assert listening_addresses(stack) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    stack.until_ended(run_id)


def test_no_secret_reaches_the_engine(stack: Stack) -> None:
    run_id = stack.launch(small_spec("secrets", steps=8))
    stack.until_step(run_id, 2)
    for part in ("driver", "rollout"):
        pid = stack.pid_of(part, run_id)
        reported = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"PALESTRA_SECRET_KEY=" not in reported
        assert b"DATABASE_URL=" not in reported
        names = {entry.partition(b"=")[0].decode() for entry in reported.split(b"\0")}
        assert {"PATH", "PALESTRA_HOME"} < names
        assert not names & SERVICES
    stack.until_ended(run_id)


def test_a_run_goes_on_after_down_and_up_even_if_the_supervisor_was_killed(empty_stack: Stack) -> None:
    stack = empty_stack
    stack.up()
    run_id = stack.launch(small_spec("down and up", steps=30))
    stack.until_step(run_id, 6)
    stack.stop()
    assert processes_of(stack.home) == []
    stack.up()
    stack.until_step(run_id, 12)
    os.kill(stack.pid, signal.SIGKILL)  # a power cut, as far as the supervisor is concerned
    stack._process = None
    (stack.home / "postgres" / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    stack.up()
    assert_complete(stack, run_id, steps=30)


def test_a_detached_up_returns_when_everything_is_up_and_down_ends_it(empty_stack: Stack) -> None:
    stack = empty_stack
    up = stack.dev("up", "--detach", "--no-sample", timeout_s=240)
    assert (up.returncode, up.stderr) == (0, "")
    assert up.stdout.endswith("running in the background; ./dev status shows it, ./dev down stops it\n")
    password = up.stdout.partition("owner@palestra.local with ")[2].split()[0]
    assert stack.status()["phase"] == "ready"
    log = stack.dev("logs", "supervisor").stdout
    assert "runs in the background" in log
    assert password not in log
    again = stack.dev("up", "--detach")
    assert again.returncode == 1
    assert "already up in" in again.stdout
    assert stack.dev("down").returncode == 0
    stack.until("everything has ended", lambda: processes_of(stack.home) == [], timeout_s=10)


def test_a_taken_port_is_named_and_nothing_is_started(empty_stack: Stack) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        refused = empty_stack.dev("up", PALESTRA_PORT=str(port))
    assert refused.returncode == 1
    assert f"port {port} (PALESTRA_PORT) is taken" in refused.stderr
    assert processes_of(empty_stack.home) == []


def test_servers_that_the_environment_names_replace_the_embedded_ones(empty_stack: Stack) -> None:
    with named_servers(Path(tempfile.mkdtemp(prefix="pe-", dir="/tmp"))) as servers:
        up = empty_stack.dev("up", "--detach", "--no-sample", timeout_s=240, **servers)
        assert up.returncode == 0, up.stdout + up.stderr
        status = empty_stack.status()
        assert {item["name"] for item in status["services"]} == {"ray", "web", "worker", "beat", "chats", "serving"}
        counted = empty_stack.dev("exec", "python", "manage.py", "shell", "-v0", "-c", COUNT_USERS, **servers)
        assert counted.stdout.split()[-1] == "1"
        assert empty_stack.dev("down").returncode == 0
        with psycopg.connect(servers["DATABASE_URL"]) as database:
            users = database.execute("SELECT count(*) FROM accounts_user").fetchone()
        assert users == (1,), "what was made is in the named database"


COUNT_USERS = "from webapp.accounts.models import User; print(User.objects.count())"


@contextmanager
def named_servers(folder: Path) -> Iterator[dict[str, str]]:
    """A PostgreSQL and a Valkey that are not Palestra's, on sockets of their own."""
    data, sockets = folder / "data", folder / "s"
    sockets.mkdir()
    postgres.create_cluster(data)
    running = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in (postgres.server_command(data, sockets), valkey.server_command(folder / "valkey", sockets))
    ]
    try:
        while not (postgres.answers(sockets) and valkey.answers(sockets)):
            assert all(process.poll() is None for process in running)
            time.sleep(0.1)
        yield {
            "DATABASE_URL": f"postgres://{postgres.USER}@/{postgres.DATABASE}?host={sockets}",
            "REDIS_URL": f"unix://{sockets}/valkey.sock",
        }
    finally:
        for process in running:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        shutil.rmtree(folder)


def processes_of(home: Path) -> list[str]:
    """Who still runs with this home in its environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"PALESTRA_HOME={home}\0".encode() in environment:
            found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200])
    return found


def listening_addresses(stack: Stack) -> set[str]:
    import psutil

    pids = [stack.pid, *(child.pid for child in psutil.Process(stack.pid).children(recursive=True))]
    connections = [
        connection
        for connection in psutil.net_connections("tcp")
        if connection.pid in pids and connection.status == psutil.CONN_LISTEN
    ]
    assert connections
    return {connection.laddr.ip for connection in connections}
