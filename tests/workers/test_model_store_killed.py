"""A real worker is killed while it stores a model, and another one goes on."""

# ruff: noqa: E402 - models can be imported only after the setup
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import django
import pytest

django.setup()

from django.conf import settings
from django.db import connection
from django.utils import timezone

from tests.engine.models.folders import folder_of
from webapp.accounts.models import User
from webapp.accounts.services import create_team
from webapp.catalog.imports import import_folder
from webapp.catalog.models import ModelVersion
from workers.reconcile import resend_lost_messages_about_models

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
LARGE_BYTES = 1500 * 2**20


@pytest.fixture
def worker(valkey_server: str, tmp_path: Path) -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    """Starts a Celery worker on the test's database and broker."""
    options = connection.settings_dict["OPTIONS"]
    database = f"postgres://palestra@/{connection.settings_dict['NAME']}?host={options['host']}"
    command = [sys.executable, "-m", "celery", "--app", "workers.app", "worker", "--concurrency", "1",
               "--without-gossip", "--without-mingle"]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        with open(tmp_path / "worker.log", "ab") as log:
            process = subprocess.Popen(
                command, env=os.environ | {"DATABASE_URL": database}, cwd=settings.ROOT, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """It and its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def waited_for(version: ModelVersion, holds: Callable[[ModelVersion], bool]) -> ModelVersion:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        version.refresh_from_db()
        if holds(version):
            return version
        time.sleep(0.02)
    pytest.fail(f"{version.state}, {version.bytes_done} of {version.bytes}, {version.problem}")


def test_a_worker_that_is_killed_loses_nothing_that_is_stored(
    worker: Callable[[], "subprocess.Popen[bytes]"], db: None
) -> None:
    source = settings.PALESTRA_IMPORTS / "qwen"
    shutil.copytree(folder_of("qwen3"), source)
    with (source / "a-further.safetensors").open("wb") as file:
        file.truncate(LARGE_BYTES)  # zeros that take no disk here; beside model.safetensors nobody reads it
    user = User.objects.create_user("alice@example.org", "correct horse battery")
    version = import_folder(create_team("Blue", acting_user=user), "qwen", "qwen", acting_user=user)
    first = worker()
    try:
        stored = waited_for(version, lambda version: version.bytes_done > 0)
        kill(first)
        stored.refresh_from_db()
        assert (stored.state, stored.bytes_done < stored.bytes) == ("importing", True)
        ModelVersion.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
        resend_lost_messages_about_models()
        worker()
        done = waited_for(version, lambda version: not version.is_unfinished)
        assert (done.state, done.number, done.problem) == ("ready", 1, None)
        assert (done.folder / "a-further.safetensors").stat().st_size == LARGE_BYTES
    finally:
        shutil.rmtree(source)
        shutil.rmtree(settings.PALESTRA_MODELS, ignore_errors=True)
