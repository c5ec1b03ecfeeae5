"""What all tests share: the test home, real servers on demand, and what a skip means.

Settings are told where the servers *will* be; the servers start with the first test that asks.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.process import spawn

# A short path: unix sockets and Ray's session folder live below it.
TEST_HOME = Path(tempfile.mkdtemp(prefix="pt-", dir="/tmp"))
SOCKETS = TEST_HOME / "s"

os.environ["PALESTRA_HOME"] = str(TEST_HOME)
os.environ["PALESTRA_RUNS"] = str(TEST_HOME / "runs")
os.environ["DATABASE_URL"] = f"postgres://palestra@/palestra?host={SOCKETS}"
os.environ["REDIS_URL"] = f"unix://{SOCKETS}/valkey.sock"
os.environ["PALESTRA_SECRET_KEY"] = "only-for-tests-" + "0" * 50
os.environ["PALESTRA_BASE_URL"] = "http://127.0.0.1:8700"
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN_PATH"] = str(TEST_HOME / "ray" / "auth_token")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"  # other tests have the other cores; what is tested with more threads sets them
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
os.environ["DJANGO_SETTINGS_MODULE"] = "webapp.settings"


def pytest_configure() -> None:
    SOCKETS.mkdir(mode=0o700, exist_ok=True)
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    token.parent.mkdir(exist_ok=True)
    token.write_text("7e57" * 16)
    token.chmod(0o600)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """A parallel process that inherited this name would read its settings before it has a home of its own."""
    del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_unconfigure() -> None:
    shutil.rmtree(TEST_HOME, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("stack"):
            item.add_marker(pytest.mark.timeout(900))  # its waits have limits of their own, which say more


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    _skip_is_failure(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    _skip_is_failure(report)
    return report


def _skip_is_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where every system part must be there (``PALESTRA_NO_SKIPS=1``), a skipped test is a failed one."""
    if os.environ.get("PALESTRA_NO_SKIPS") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but PALESTRA_NO_SKIPS is set: {report.longrepr[2]}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A PostgreSQL of this test process; yields its DATABASE_URL."""
    from devtools import postgres

    data = TEST_HOME / "postgres" / "data"
    postgres.create_cluster(data)
    # Nothing of a test outlives it, so durability would only cost time.
    command = [*postgres.server_command(data, SOCKETS), "-c", "fsync=off", "-c", "synchronous_commit=off"]
    with _running(command, TEST_HOME / "postgres.log", stop=signal.SIGINT) as server:
        _wait_until(lambda: postgres.answers(SOCKETS), server, TEST_HOME / "postgres.log")
        yield os.environ["DATABASE_URL"]


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[str]:
    """A Valkey of this test process; yields its REDIS_URL."""
    from devtools import valkey

    with _running(valkey.server_command(TEST_HOME / "valkey", SOCKETS), TEST_HOME / "valkey.log") as server:
        _wait_until(lambda: valkey.answers(SOCKETS), server, TEST_HOME / "valkey.log")
        yield os.environ["REDIS_URL"]


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, postgres_server: str
) -> Iterator[None]:
    """pytest-django asks for this before it makes the test database: the moment to start the server."""
    from tests import emptying

    with emptying.in_place_of_flush():
        yield


class _running:
    """A server process that is gone when the block ends, and also when this process is killed."""

    def __init__(self, command: list[str], log: Path, *, stop: signal.Signals = signal.SIGTERM) -> None:
        self._command, self._log, self._stop = command, log, stop

    def __enter__(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        self._process = spawn(
            self._command, log=self._log, environment=environment, folder=TEST_HOME, death_signal=self._stop
        )
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(self._stop)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _wait_until(ready, server: subprocess.Popen[bytes], log: Path, *, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not ready():
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"a test server did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.02)
