"""The Celery application."""

import pytest

from webapp import queue
from workers.app import app


def test_every_task_name_that_is_sent_exists() -> None:
    app.loader.import_default_modules()
    assert set(queue.TASKS) <= set(app.tasks)
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(queue.TASKS)


def test_no_task_can_be_given_out_twice_while_it_runs() -> None:
    assert app.conf.task_time_limit < app.conf.broker_transport_options["visibility_timeout"]
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost


@pytest.mark.parametrize(
    ("redis", "celery"),
    [("unix:///run/valkey.sock", "redis+socket:///run/valkey.sock"), ("redis://host:6379/0", "redis://host:6379/0")],
)
def test_the_broker_is_the_redis_server(redis: str, celery: str) -> None:
    assert queue.broker_url(redis) == celery
