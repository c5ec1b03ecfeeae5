"""Hands work to the workers by task *name*: the web never imports them.

The row is the truth and the message only a nudge.  If the broker is down the work stays queued in
the database, and ``reconcile`` sends it again; nobody who pressed a button sees an error for that.
"""

from functools import cache

import structlog
from celery import Celery
from django.conf import settings
from django.db import transaction
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

LAUNCH = "runs.launch"
RECONCILE = "runs.reconcile"
TIDY = "accounts.tidy"
STORE_MODEL = "catalog.store"
REMOVE_MODEL = "catalog.remove"
STORE_DATASET = "datasets.store"
REMOVE_DATASET = "datasets.remove"
MEASURE_DATASET = "datasets.measure"
STORE_TASKS = "tasks.store"
REMOVE_TASKS = "tasks.remove"
STORE_PACKAGE = "packages.store"
REMOVE_PACKAGE = "packages.remove"
TASKS = (
    LAUNCH, RECONCILE, TIDY, STORE_MODEL, REMOVE_MODEL, STORE_DATASET, REMOVE_DATASET, MEASURE_DATASET, STORE_TASKS,
    REMOVE_TASKS, STORE_PACKAGE, REMOVE_PACKAGE,
)  # fmt: skip
"""Every name that is ever sent, by us or by the schedule; a test asserts that the workers know them."""

_ONE_MORE_TRY = {"max_retries": 1, "interval_start": 0}
"""The first try may meet a connection that died with an earlier broker."""

log = structlog.get_logger(__name__)


def broker_url(redis_url: str) -> str:
    """Celery spells a unix socket ``redis+socket://`` where redis-py says ``unix://``."""
    return "redis+socket://" + redis_url.removeprefix("unix://") if redis_url.startswith("unix://") else redis_url


def send(task_name: str, *args: str) -> None:
    """Send when the current transaction commits, or at once outside of one."""
    assert task_name in TASKS, task_name
    transaction.on_commit(lambda: _send_now(task_name, args))


def _send_now(task_name: str, args: tuple[str, ...]) -> None:
    try:
        _broker().send_task(task_name, args=args, ignore_result=True, retry=True, retry_policy=_ONE_MORE_TRY)
    except (OperationalError, RedisError, OSError) as error:
        log.warning("broker is down; reconcile will send this again", task=task_name, args=args, error=str(error))


@cache
def _broker() -> Celery:
    app = Celery("palestra-sender", broker=broker_url(settings.REDIS_URL), set_as_current=False)
    app.conf.update(
        broker_connection_retry=False,
        broker_transport_options={"socket_connect_timeout": 1, "socket_timeout": 2, "max_retries": 0},
        redis_socket_connect_timeout=1,
        redis_socket_timeout=2,
    )
    return app
