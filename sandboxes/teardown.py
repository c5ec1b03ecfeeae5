"""Work that must be finished once begun, however often its caller is cancelled meanwhile."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def completed(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end; only then let a cancellation through.

    ``asyncio.shield`` alone protects the work but returns at the first cancellation, and the event
    loop may be gone before the work is done.
    """
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancelled:
            cancellation = cancelled
    if cancellation is not None:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise cancellation from error
        raise cancellation
    return task.result()
