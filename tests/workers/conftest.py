"""Runs whose jobs live in a cluster that the test commands."""

# ruff: noqa: E402 - models can be imported only after the setup
from typing import Any

import django
import pytest

django.setup()

from engine.spec.run import RunSpec
from webapp import queue
from webapp.accounts.models import User
from webapp.accounts.services import create_team
from webapp.runs.models import Run
from webapp.runs.services import submit_run
from workers import ray_jobs, reconcile
from workers.ray_jobs import Job, RayUnreachable


class Cluster:
    """A Ray job server whose jobs do what the test says.  A stopped job dies when the test lets it."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.entrypoints: dict[str, str] = {}
        self.stopped: list[str] = []
        self.is_up = True

    def _needs_to_be_up(self) -> None:
        if not self.is_up:
            raise RayUnreachable("down")

    def all(self) -> dict[str, Job]:
        self._needs_to_be_up()
        return dict(self.jobs)

    def submit(self, submission_id: str, entrypoint: str) -> None:
        self._needs_to_be_up()
        self.jobs.setdefault(submission_id, Job("alive"))
        self.entrypoints[submission_id] = entrypoint

    def stop(self, submission_id: str) -> None:
        self._needs_to_be_up()
        self.stopped.append(submission_id)

    def die(self, run: Run, exit_code: int = 1, message: str = "Job failed\nOSError: disk full") -> None:
        run.refresh_from_db()
        self.jobs[run.submission_id] = Job("failed", exit_code, message)

    def restart(self) -> None:
        self.jobs.clear()


@pytest.fixture(autouse=True)
def _fast_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Any) -> Cluster:
    cluster = Cluster()

    def connect() -> Cluster:
        cluster._needs_to_be_up()
        return cluster

    monkeypatch.setattr(ray_jobs, "connect", connect)
    monkeypatch.setattr(reconcile, "_web_answers", lambda: True)
    settings.PALESTRA_RUNS = tmp_path / "runs"
    return cluster


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any) -> list[tuple[str, tuple[str, ...]]]:
    """The messages that would have gone to the broker, once their transaction is through."""
    messages: list[tuple[str, tuple[str, ...]]] = []
    monkeypatch.setattr(queue, "send", lambda name, *args: messages.append((name, args)))
    return messages


@pytest.fixture
def user(db: None) -> User:
    return User.objects.create_user("alice@example.org", "correct horse battery")


@pytest.fixture
def run(user: User, sent: list[Any]) -> Run:
    """Queued."""
    return submit_run(create_team("Blue", acting_user=user), RunSpec(name="tiny"), acting_user=user)
