"""``./dev up`` and its way down: refusals, recovery, going on."""

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.end_to_end.stack import Stack, small_spec
from tests.end_to_end.test_kills import assert_complete

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
        told = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"PALESTRA_SECRET_KEY=" not in told
        assert b"DATABASE_URL=" not in told
    stack.until_ended(run_id)


def test_a_run_goes_on_after_down_and_up_even_if_the_supervisor_was_killed(empty_stack: Stack) -> None:
    stack = empty_stack
    stack.up()
    run_id = stack.launch(small_spec("down and up", steps=150))
    stack.until_step(run_id, 6)
    stack.stop()
    assert processes_of(stack.home) == []
    stack.up()
    stack.until_step(run_id, 12)
    os.kill(stack.pid, signal.SIGKILL)  # a power cut, as far as the supervisor is concerned
    stack._process = None
    (stack.home / "postgres" / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    stack.up()
    assert_complete(stack, run_id, steps=150)


def test_a_taken_port_is_named_and_nothing_is_started(empty_stack: Stack) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        refused = empty_stack.dev("up", PALESTRA_PORT=str(port))
    assert refused.returncode == 1
    assert f"port {port} (PALESTRA_PORT) is taken" in refused.stderr
    assert processes_of(empty_stack.home) == []


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

    pids = [stack.pid, *(one.pid for one in psutil.Process(stack.pid).children(recursive=True))]
    connections = [one for one in psutil.net_connections("tcp") if one.pid in pids and one.status == psutil.CONN_LISTEN]
    assert connections
    return {one.laddr.ip for one in connections}
