"""Tells live readers that a run's log has grown, or that there is news about alerts.

The poke carries nothing: readers read the database.  A lost poke only delays them until their next
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
"""After a failure, pokes are left out for this long."""

log = structlog.get_logger(__name__)
_resting_until = 0.0


def group_of(run_id: UUID | str) -> str:
    return f"run.{run_id}"


ALERTS = "alerts"
"""The group of those who follow alerts, of whatever team."""


def poke(run_id: UUID) -> None:
    _poke(group_of(run_id))


def poke_alerts() -> None:
    _poke(ALERTS)


def _poke(group: str) -> None:
    global _resting_until
    if time.monotonic() < _resting_until:
        return
    try:
        async_to_sync(_send)(group)
    except (RedisError, OSError, TimeoutError) as error:
        _resting_until = time.monotonic() + REST_S
        log.warning("live viewers are not poked; they poll", error=repr(error), rest_s=REST_S)


async def _send(group: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        await get_channel_layer().group_send(group, {"type": "poke"})
