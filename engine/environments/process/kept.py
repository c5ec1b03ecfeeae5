"""An environment process that is started again when it is lost, and not too often."""

import asyncio
import atexit
import logging
import os
from functools import cache

from engine.environments.process.answers import Started
from engine.environments.process.connection import EnvironmentProcess, EnvironmentProgram
from engine.environments.process.thread import waited

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
"""Before a process that was lost twice in a row is started again; each further loss doubles it."""
END_S = 15.0
log = logging.getLogger(__name__)


class KeptProcess:
    """What is asked of it happens in the loop of ``thread.py``."""

    def __init__(self, program: EnvironmentProgram) -> None:
        self.program = program
        self.starts = 0
        self._starting = asyncio.Lock()
        self._running: tuple[EnvironmentProcess, Started] | None = None
        self._losses_in_a_row = 0

    async def process(self) -> EnvironmentProcess:
        """The running one; a lost one is replaced.  Raises as ``EnvironmentProcess.start``."""
        return (await self._now())[0]

    async def started(self) -> Started:
        """What it says of itself."""
        return (await self._now())[1]

    async def end(self) -> None:
        if self._running is not None:
            await self._running[0].end("the engine ended it")

    async def _now(self) -> tuple[EnvironmentProcess, Started]:
        async with self._starting:
            if self._running is not None and self._running[0].lost is None:
                return self._running
            if self._running is not None or self._losses_in_a_row:
                await self._pause()
            try:
                self._running = await EnvironmentProcess.start(self.program)
            except Exception:
                self._losses_in_a_row += 1
                raise
            self.starts += 1
            return self._running

    async def _pause(self) -> None:
        if self._running is not None:
            process, _ = self._running
            self._running = None
            log.warning("%s; it is started again", process.lost)
            await process.end("it was lost")
            self._losses_in_a_row = 1 if process.finished_episodes else self._losses_in_a_row + 1
        if self._losses_in_a_row > 1:
            await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._losses_in_a_row - 2, 16)))


@cache
def kept_process(program: EnvironmentProgram) -> KeptProcess:
    """This process's one of it, whoever asks; it ends when this process does."""
    kept = KeptProcess(program)
    atexit.register(_ended, kept)
    return kept


def _ended(kept: KeptProcess) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(END_S):
            await kept.end()

    waited(bounded())


os.register_at_fork(after_in_child=kept_process.cache_clear)  # the processes are the parent's
