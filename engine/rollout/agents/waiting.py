"""How the calls of an agent wait: for one another, and until something ends them."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Interruption:
    """Belongs to one block, and to its event loop."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self.error: Exception | None = None

    def interrupt(self, error: Exception) -> None:
        """End the block with ``error`` as soon as it waits; only the first is raised.  Not to be called behind it."""
        if self.error is None:
            self.error = error
            self._timeout.reschedule(0)


@asynccontextmanager
async def interruptible() -> AsyncIterator[Interruption]:
    """A block that ends where it waits, as by a timeout, when it is interrupted, and raises why."""
    timeout = asyncio.timeout(None)
    interruption = Interruption(timeout)
    try:
        async with timeout:
            yield interruption
    except TimeoutError:
        if timeout.expired() and interruption.error is not None:
            raise interruption.error from None
        raise


async def all_of(parts: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of them gives; the first that fails ends the others, and one alone is no task of its own."""
    if len(parts) == 1:
        return [await parts[0]]
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
