import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from devtools import postgres


class Server:
    def __init__(self, folder: Path) -> None:
        self.data, self.sockets = folder / "data", folder / "s"
        self.sockets.mkdir(mode=0o700)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        postgres.create_cluster(self.data)
        postgres.forget_dead_server(self.data, self.sockets)
        with open(self.data.parent / "log", "ab") as log:
            self.process = subprocess.Popen(postgres.server_command(self.data, self.sockets), stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not postgres.answers(self.sockets):
            assert time.monotonic() < deadline, (self.data.parent / "log").read_text()
            time.sleep(0.05)

    def end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(host=str(self.sockets), user=postgres.USER, dbname=postgres.DATABASE)


@pytest.fixture
def server() -> Iterator[Server]:
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="pp-", dir="/tmp"))
    one = Server(folder)
    try:
        yield one
    finally:
        one.end(signal.SIGINT)
        shutil.rmtree(folder)


def test_committed_rows_survive_a_kill_and_a_pid_file_that_names_somebody_else(server: Server) -> None:
    server.start()
    with server.connect() as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (7)")
    server.end(signal.SIGKILL)
    (server.data / "postmaster.pid").write_text(f"{os.getpid()}\n{server.data}\n")
    server.start()
    with server.connect() as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]


def test_a_half_made_cluster_is_made_anew(server: Server) -> None:
    server.data.mkdir()
    (server.data / "half").write_text("")
    server.start()
    assert not (server.data / "half").exists()


def test_it_does_not_listen_on_tcp(server: Server) -> None:
    server.start()
    with server.connect() as connection:
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
