"""The services of one Palestra: what each is called, how it starts, and when it counts as up."""

import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

from devtools import postgres, ray_head, valkey
from devtools.home import Home
from devtools.process import Service

CELERY = [sys.executable, "-m", "celery", "--app", "workers.app"]


def embedded_servers(home: Home, ports: dict[str, int]) -> list[Service]:
    """Return what must run before the database can be migrated; servers that the caller named are not started."""
    services = []
    if not os.environ.get("DATABASE_URL"):
        services.append(_postgres(home))
    if not os.environ.get("REDIS_URL"):
        services.append(_valkey(home))
    return [*services, _ray(home, ports)]


def own_processes(home: Home, web: socket.socket) -> list[Service]:
    """``web`` is the listening socket that the web answers on; it stays open in the caller."""
    return [_web(web), _worker(), _beat(home), _chats(), _serving()]


def _postgres(home: Home) -> Service:
    data = home.folder / "postgres" / "data"
    postgres.create_cluster(data)
    return Service(
        name="postgres",
        command=postgres.server_command(data, home.sockets),
        is_ready=lambda: postgres.answers(home.sockets),
        before_start=lambda: postgres.forget_dead_server(data, home.sockets),
        stop_signal=signal.SIGINT,  # "fast": ends the sessions and shuts down cleanly
        stop_timeout_s=30,
    )


def _valkey(home: Home) -> Service:
    path = home.sockets / "valkey.sock"
    return Service(
        name="valkey",
        command=valkey.server_command(home.folder / "valkey", home.sockets),
        is_ready=lambda: valkey.answers(home.sockets),
        before_start=lambda: path.unlink(missing_ok=True),
    )


def _ray(home: Home, ports: dict[str, int]) -> Service:
    temporary = home.sockets / "ray"
    token = home.ray_token_file.read_text()
    url = f"http://127.0.0.1:{ports['dashboard-port']}"
    return Service(
        name="ray",
        # Engines run beside code that nobody trusts: Ray and what it starts get what jobs get, and no more.
        command=[sys.executable, "-m", "workers.engine_environment", *ray_head.head_command(ports, temporary)[2:]],
        is_ready=lambda: ray_head.answers(url, token),
        before_start=lambda: ray_head.forget_dead_head(temporary),
        stop_timeout_s=15,
    )


def _web(listening: socket.socket) -> Service:
    descriptor, port = listening.fileno(), listening.getsockname()[1]
    command = [sys.executable, "-m", "devtools.web", str(descriptor)]
    return Service("web", command, is_ready=lambda: web_answers(port), inherits=(descriptor,))


def _worker() -> Service:
    command = [*CELERY, "worker", "--concurrency", "2", "--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    # A task ends within its time limits; what is not done by then is sent again by reconcile.
    return Service("worker", command, is_ready=lambda: True, stop_timeout_s=10)


def _chats() -> Service:
    command = [sys.executable, "-m", "workers.chats"]
    return Service("chats", command, is_ready=lambda: True, stop_timeout_s=10)


def _serving() -> Service:
    command = [sys.executable, "-m", "workers.serving"]
    # Its server lets calls end for ten seconds.
    return Service("serving", command, is_ready=lambda: True, stop_timeout_s=15)


def _beat(home: Home) -> Service:
    schedule = home.folder / "celery" / "beat-schedule"
    # No pid file: the home's lock already says that there is one beat.
    command = [*CELERY, "beat", "--schedule", str(schedule), "--pidfile=", "--loglevel", "INFO"]
    return Service("beat", command, is_ready=lambda: True, before_start=lambda: _forget(schedule))


def _forget(schedule: Path) -> None:
    """A schedule that was cut off in mid-write would stop beat; it holds only the times of the last ticks."""
    for leftover in schedule.parent.glob(schedule.name + "*"):
        leftover.unlink()


def web_answers(port: int) -> bool:
    """Asked in a tick, so it must not wait: while the web starts, the held socket takes a request and is silent."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=0.3) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
