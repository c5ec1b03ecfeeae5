"""One thread with an event loop, in which the lines to all environment processes of this process are served.

Episodes run in one loop, what measures prompts in another, and ``Environment.tasks`` in none: each of them asks here.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_loop: asyncio.AbstractEventLoop | None = None
_making = threading.Lock()


async def awaited(work: Coroutine[Any, Any, T]) -> T:
    """Do the work in the thread, and wait for it in the caller's loop.  A cancelled caller cancels the work."""
    return await asyncio.wrap_future(_submitted(work))


def waited(work: Coroutine[Any, Any, T]) -> T:
    """Do the work in the thread, and block until it is done."""
    return _submitted(work).result()


def _submitted(work: Coroutine[Any, Any, T]) -> "Future[T]":
    return asyncio.run_coroutine_threadsafe(work, _running_loop())


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _making:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="environment-processes", daemon=True).start()
        return _loop


def _forget() -> None:
    global _loop, _making
    _loop, _making = None, threading.Lock()  # threads do not survive a fork


os.register_at_fork(after_in_child=_forget)
