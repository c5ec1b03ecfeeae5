"""Where processes are started from: one thread that lives as long as the embedder.

``bwrap --die-with-parent`` follows the parent *thread*.  A sandbox that was started by a thread of some
pool would die when the pool shrinks, so one thread, which never ends, starts them all.  It also
keeps the start of a process off the event loop.  Nothing here may need a real fork (``user=``,
``preexec_fn``), which copies the page tables of an embedder that may be large; vfork does not.
"""

import asyncio
import os
import queue
import subprocess
import threading
from collections.abc import Callable

from sandboxes import owner
from sandboxes.teardown import completed

Process = subprocess.Popen[bytes]
Wanted = tuple[Callable[[], Process], "asyncio.Future[Process]", asyncio.AbstractEventLoop]


class Spawner:
    def __init__(self) -> None:
        self._wanted: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="sandbox-spawner", daemon=True).start()

    def _serve(self) -> None:
        while True:
            start, future, loop = self._wanted.get()
            process: Process | None = None
            error: Exception | None = None
            try:
                process = start()
            except Exception as failure:  # the caller's: this thread must go on, or the caller would wait for ever
                error = failure
            try:
                loop.call_soon_threadsafe(_settle, future, process, error)
            except RuntimeError:  # the loop was closed meanwhile: nobody will ever use this process
                _discard(process)

    async def spawn(self, arguments: list[str], *, inherited: tuple[int, ...], stderr: int) -> Process:
        """Start a process.  Its descriptors are the caller's to close, whether this returns or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Process] = loop.create_future()

        def start() -> Process:
            return subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=inherited,
                cwd="/",
                env={owner.VARIABLE: owner.mark()},  # for sweeper.py; no guest sees it, bwrap clears it
                start_new_session=True,  # Ctrl-C at the embedder's terminal is for the embedder
            )

        self._wanted.put((start, future, loop))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The descriptors must stay open until the thread is done with them.
            await completed(_abandoned(future))
            raise


def _settle(future: "asyncio.Future[Process]", process: Process | None, error: Exception | None) -> None:
    if process is None:
        future.set_exception(error or RuntimeError("no process"))
    else:
        future.set_result(process)


async def _abandoned(future: "asyncio.Future[Process]") -> None:
    try:
        _discard(await future)
    except Exception:
        return  # it never started


def _discard(process: Process | None) -> None:
    if process is not None:
        process.kill()
        process.wait()


_spawner: Spawner | None = None


def spawner() -> Spawner:
    """The process's one spawner."""
    global _spawner
    if _spawner is None:
        _spawner = Spawner()
    return _spawner


def _forget() -> None:
    global _spawner
    _spawner = None  # threads do not survive a fork


os.register_at_fork(after_in_child=_forget)
