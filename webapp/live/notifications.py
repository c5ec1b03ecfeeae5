"""Waiting for a notification of the channel layer, or for anything else, but never for ever."""

import asyncio
from contextlib import suppress

import structlog
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)


async def listen(group: str, notified: asyncio.Event, *, retry_s: float) -> None:
    """Turn notifications of a group into wake-ups, for ever.  Without the layer there is the reader's own poll."""
    while True:
        layer = get_channel_layer()
        try:
            channel = await layer.new_channel()
            await layer.group_add(group, channel)
            while True:
                notified.set()  # also when it has just joined: what was said before did not reach it
                await layer.receive(channel)
        except (RedisError, OSError) as error:
            log.warning("live.no_notifications", group=group, error=str(error))
            await asyncio.sleep(retry_s)


async def happens(event: asyncio.Event, within_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
            return True
    return False
