"""What Prometheus reads of Palestra itself."""

from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from engine.spec.run import RunSpec
from webapp.monitoring import TASKS
from webapp.runs.models import Run
from webapp.runs.services import submit_run

pytestmark = pytest.mark.django_db(transaction=True)


def numbers() -> dict[tuple[str, ...], float]:
    text = Client(REMOTE_ADDR="127.0.0.1").get("/metrics").content.decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("palestra_")
    }


def test_runs_are_counted_by_state_and_every_state_is_there(team, alice, spec: RunSpec, engine: Any) -> None:
    before = numbers()
    submit_run(team, spec, acting_user=alice)
    Run.objects.filter(state="queued").update(state_since=timezone.now() - timezone.timedelta(seconds=90))
    engine.post(
        engine.started(), engine.metric(1, perf__tokens_per_s=125.0), engine.metric(2, perf__tokens_per_s=250.0)
    )
    reported = numbers()
    assert (
        reported["palestra_runs", "queued"],
        reported["palestra_runs", "running"],
        reported["palestra_runs", "failed"],
    ) == (
        1,
        1,
        0,
    )
    assert reported["palestra_queue_oldest_seconds",] >= 90
    assert reported["palestra_tokens_per_second",] == 250.0
    assert reported["palestra_events_stored",] == 3
    assert reported["palestra_ingest_events_total",] - before.get(("palestra_ingest_events_total",), 0) == 3


def test_a_refused_batch_is_counted_by_its_answer(engine: Any) -> None:
    before = numbers().get(("palestra_ingest_batches_total", "401"), 0)
    engine.post_raw("{}", token="nobody")
    assert numbers()["palestra_ingest_batches_total", "401"] == before + 1


def test_alerts_are_counted_by_severity_and_state(engine: Any) -> None:
    assert engine.post(engine.started(), engine.alert()).status_code == 200
    assert numbers()["palestra_alerts", "critical", "open"] == 1


def test_what_waits_in_the_broker_is_reported(valkey_server: str) -> None:
    with redis.Redis.from_url(settings.REDIS_URL) as broker:
        broker.delete(TASKS)
        broker.rpush(TASKS, "one", "two")
        try:
            reported = numbers()
        finally:
            broker.delete(TASKS)
    assert (reported["palestra_broker_up",], reported["palestra_tasks_waiting",]) == (1, 2)


def test_a_broker_that_is_down_is_a_number_and_no_error(settings) -> None:
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    reported = numbers()
    assert reported["palestra_broker_up",] == 0
    assert ("palestra_tasks_waiting",) not in reported
