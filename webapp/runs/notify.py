"""Tells live readers that a run's log has grown, or that there is news about alerts.

The notification carries nothing: readers read the database.  A lost notification only delays them until their next
poll, so a channel layer that is down or slow costs the sender one short wait, and then nothing for a
while.
"""

import asyncio
import time
from uuid import UUID

import structlog
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

TIMEOUT_S = 0.5
REST_S = 5.0
"""After a failure, notifications are left out for this long."""

log = structlog.get_logger(__name__)
_resting_until = 0.0


def group_of(run_id: UUID | str) -> str:
    return f"run.{run_id}"


ALERTS = "alerts"
"""The group of those who follow alerts, of whatever team."""


def notify_run_viewers(run_id: UUID) -> None:
    notify_group(group_of(run_id))


def notify_alert_viewers() -> None:
    notify_group(ALERTS)


def notify_group(group: str) -> None:
    """Wake whoever follows the group."""
    global _resting_until
    if time.monotonic() < _resting_until:
        return
    try:
        async_to_sync(_send)(group)
    except (RedisError, OSError, TimeoutError) as error:
        _resting_until = time.monotonic() + REST_S
        log.warning("live viewers are not notified; they poll", error=repr(error), rest_s=REST_S)


async def _send(group: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await get_channel_layer().group_send(group, {"type": "notify"})
