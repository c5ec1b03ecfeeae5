"""The workers' Celery application: ``celery --app workers.app worker`` and ``... beat``.

Tasks are short and safe to run twice.  The database is the truth and a message only a nudge: what
is lost with the broker, ``runs.reconcile`` finds and sends again.
"""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
# A worker process has one thread, and a pool must not be inherited by forked children.
os.environ.setdefault("PALESTRA_DB_POOL", "0")

import django

django.setup()

from celery import Celery  # noqa: E402
from django.conf import settings  # noqa: E402

from webapp import queue  # noqa: E402

RECONCILE_EVERY_S = 5.0

app = Celery(
    "palestra",
    broker=queue.broker_url(settings.REDIS_URL),
    include=[
        "workers.launch",
        "workers.reconcile",
        "workers.model_store",
        "workers.dataset_store",
        "workers.dataset_measurements",
        "workers.task_store",
        "workers.model_tidy",
        "workers.tidy",
    ],
)
app.conf.update(
    # Acknowledged when done, so a killed worker's task is given to another one.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_soft_time_limit=60,
    task_time_limit=90,
    # Longer than any task may last; otherwise a slow task would be started a second time beside itself.
    broker_transport_options={"visibility_timeout": 300},
    task_ignore_result=True,
    result_expires=None,  # there are none to expire, and no task of Celery's own that would see to it
    broker_connection_retry=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    # Their messages come back with the connection, and no task minds being cut off and repeated.
    worker_cancel_long_running_tasks_on_connection_loss=True,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    timezone="UTC",
    beat_scheduler="workers.beat.SteadyScheduler",
    beat_schedule={
        # A tick that nobody took in time is useless: the next one does its work.
        "reconcile": {
            "task": queue.RECONCILE,
            "schedule": RECONCILE_EVERY_S,
            "options": {"expires": RECONCILE_EVERY_S},
        },
        "tidy": {"task": queue.TIDY, "schedule": 3600.0, "options": {"expires": 3600.0}},
    },
)
