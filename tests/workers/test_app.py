"""The Celery application."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery.beat import Service

from webapp import queue
from workers.app import app


def test_every_task_name_that_is_sent_exists() -> None:
    app.loader.import_default_modules()
    assert set(queue.TASKS) <= set(app.tasks)
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(queue.TASKS)


def test_no_task_can_be_given_out_twice_while_it_runs() -> None:
    app.loader.import_default_modules()
    limits = [task.time_limit or app.conf.task_time_limit for task in app.tasks.values()]
    assert max(limits) < app.conf.broker_transport_options["visibility_timeout"]
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost


@pytest.mark.parametrize(
    ("redis", "celery"),
    [("unix:///run/valkey.sock", "redis+socket:///run/valkey.sock"), ("redis://host:6379/0", "redis://host:6379/0")],
)
def test_the_broker_is_the_redis_server(redis: str, celery: str) -> None:
    assert queue.broker_url(redis) == celery


def test_ticks_go_on_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    beat = Service(app, scheduler_cls=app.conf.beat_scheduler, schedule_filename=str(tmp_path / "schedule"))
    monkeypatch.setattr(type(beat.scheduler), "producer", None)
    ticked: list[str] = []
    monkeypatch.setattr(beat.scheduler, "apply_async", lambda entry, **_: ticked.append(entry.name))
    monkeypatch.setattr(app, "now", lambda: datetime.now(UTC) + timedelta(hours=1))
    beat.scheduler.schedule["reconcile"].schedule.run_every = timedelta(seconds=0.05)
    deadline = time.monotonic() + 60
    while "reconcile" not in ticked and time.monotonic() < deadline:
        time.sleep(min(beat.scheduler.tick(), 0.01))
    monkeypatch.setattr(app, "now", lambda: datetime.now(UTC))
    ticked.clear()
    while "reconcile" not in ticked and time.monotonic() < deadline:
        time.sleep(min(beat.scheduler.tick(), 0.01))
    beat.scheduler.close()
    assert "reconcile" in ticked
