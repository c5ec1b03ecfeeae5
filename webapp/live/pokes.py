"""Waiting for a poke of the channel layer, or for anything else, but never for ever."""

import asyncio
from contextlib import suppress

import structlog
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)


async def listen(group: str, poked: asyncio.Event, *, retry_s: float) -> None:
    """Turn pokes of a group into wake-ups, for ever.  Without the layer the reader's own poll is all there is."""
    while True:
        layer = get_channel_layer()
        try:
            channel = await layer.new_channel()
            await layer.group_add(group, channel)
            while True:
                poked.set()  # also when it has just joined: what was said before did not reach it
                await layer.receive(channel)
        except (RedisError, OSError) as error:
            log.warning("live.no_pokes", group=group, error=str(error))
            await asyncio.sleep(retry_s)


async def happens(event: asyncio.Event, within_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
            return True
    return False
