"""Palestra's own numbers for Prometheus, read from the database and the broker at each scrape.

Sums over all teams: no name, id or address of anybody's is among them.  They are the same
whichever web process is asked; what a process counts by itself (``webapp/ingest/endpoint.py``) restarts with it.
"""

from collections.abc import Iterator
from datetime import datetime

import redis
import structlog
from django.conf import settings
from django.db.models import Count, Min, OuterRef, Subquery, Sum
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from webapp.runs.models import LIVE, MetricPoint, Run, RunStatus
from webapp.security.models import Alert

BROKER_TIMEOUT_S = 1.0
TASKS = "celery"
"""The list in which Celery keeps what no worker has taken."""

log = structlog.get_logger(__name__)
REGISTRY = CollectorRegistry()


def exposition() -> bytes:
    return generate_latest(REGISTRY)


class Numbers(Collector):
    def describe(self) -> list[Metric]:
        """None ahead: registering must not ask the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from _runs()
        yield from _speed()
        yield from _alerts()
        yield from _queue()


def _runs() -> Iterator[Metric]:
    by_state = GaugeMetricFamily("palestra_runs", "Runs by state", labels=["state"])
    counted = dict(Run.objects.values_list("state").annotate(count=Count("id")))
    for state in RunStatus.values:
        by_state.add_metric([state], counted.get(state, 0))
    yield by_state
    now = timezone.now()
    oldest = Run.objects.filter(state=RunStatus.QUEUED).aggregate(at=Min("state_since"))["at"]
    yield _gauge("palestra_queue_oldest_seconds", "How long the oldest queued run waits", _age(oldest, now))
    silent = Run.objects.filter(state__in=LIVE).aggregate(at=Min("heartbeat_at"))["at"]
    yield _gauge("palestra_heartbeat_oldest_seconds", "Longest silence of a live run", _age(silent, now))
    stored = Run.objects.aggregate(events=Sum("last_seq"))["events"] or 0
    yield _gauge("palestra_events_stored", "Events of all runs", stored)


def _age(moment: datetime | None, now: datetime) -> float:
    return 0.0 if moment is None else max((now - moment).total_seconds(), 0.0)


def _speed() -> Iterator[Metric]:
    points = MetricPoint.objects.filter(run=OuterRef("pk"), key__name="perf/tokens_per_s").order_by("-step")
    running = Run.objects.filter(state=RunStatus.RUNNING).annotate(speed=Subquery(points.values("value")[:1]))
    total = sum(speed or 0.0 for speed in running.values_list("speed", flat=True))
    yield _gauge("palestra_tokens_per_second", "Sampled tokens, as the running runs last said", total)


def _alerts() -> Iterator[Metric]:
    alerts = GaugeMetricFamily("palestra_alerts", "Alerts by severity and state", labels=["severity", "state"])
    for severity, state, count in Alert.objects.values_list("severity", "state").annotate(count=Count("id")):
        alerts.add_metric([severity, state], count)
    yield alerts


def _queue() -> Iterator[Metric]:
    reached, waiting = 1, 0
    try:
        with redis.Redis.from_url(
            settings.REDIS_URL, socket_timeout=BROKER_TIMEOUT_S, socket_connect_timeout=BROKER_TIMEOUT_S
        ) as broker:
            waiting = broker.llen(TASKS)
    except redis.RedisError as error:
        log.warning("the broker cannot be asked what waits", error=str(error))
        reached = 0
    yield _gauge("palestra_broker_up", "1 when the broker could be asked", reached)
    if reached:
        yield _gauge("palestra_tasks_waiting", "Tasks that no worker has taken", waiting)


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=value)


REGISTRY.register(Numbers())
