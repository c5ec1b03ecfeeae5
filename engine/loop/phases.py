"""The phases of an attempt: each is reported and timed; between two of them the attempt can pause, in any it can end.

Beside the work runs one watcher.  It ends the work when the service cancels or refuses the attempt, and
when nothing has moved for ``schedule.stall_timeout_s``.  Pausing happens between phases only.  What a
phase does stands in ``loop``, ``step`` and ``milestones``.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from engine.failures import AttemptFailed, AttemptRefused, Cancelled
from engine.loop.lane_spans import SpanLog
from engine.loop.progress import Progress
from engine.loop.run_control import RunControl
from engine.loop.state import RunState
from engine.reporting.event_writer import EventWriter
from engine.spec import event

GRACE_S = 1.0
"""How long work that is being ended may take to clean up."""
LOOK_EVERY_S = 0.1
"""How often a paused attempt looks whether it may go on."""


@dataclass
class Spent:
    """How long a phase took, once it is over."""

    seconds: float = 0.0


class Phases:
    """Belongs to one attempt.

    ``before_pause`` saves what is finished, and ``after_pause`` lets a step go on; both may enter phases of their own.
    """

    def __init__(
        self,
        state: RunState,
        events: EventWriter,
        control: RunControl,
        progress: Progress,
        *,
        stall_timeout_s: float,
        before_pause: Callable[[], Awaitable[None]],
        after_pause: Callable[[], Awaitable[None]],
    ) -> None:
        self.progress = progress
        self.spans = SpanLog()
        self._state = state
        self._events = events
        self._control = control
        self._stall_timeout_s = stall_timeout_s
        self._before_pause, self._after_pause = before_pause, after_pause

    @asynccontextmanager
    async def phase(
        self, phase: event.Phase, step: int, *, stage: event.StageProgress | None = None
    ) -> AsyncIterator[Spent]:
        """Report its begin and, unless something is raised in it, its end, with its duration."""
        began, spent = time.monotonic(), Spent()
        self.progress.enter(phase, step)
        self._events.emit(event.PhaseChanged, step=step, phase=phase, stage=stage)
        yield spent
        spent.seconds = time.monotonic() - began
        self.spans.phase_ended(phase, spent.seconds)
        self._state.seconds[phase] = self._state.seconds.get(phase, 0.0) + spent.seconds
        self._events.emit(event.PhaseChanged, step=step, phase=phase, seconds=spent.seconds, stage=stage)

    @property
    def pause_wanted(self) -> bool:
        """Whether the next boundary waits."""
        return self._control.desired == "pause"

    async def boundary(self) -> None:
        """If a pause is wanted: save what is finished, and wait.  Everything in memory stays as it is."""
        if not self.pause_wanted:
            return
        await self._before_pause()
        async with self.phase("paused", self._state.finished_steps):
            await self._end_of_pause()
        await self._after_pause()

    async def _end_of_pause(self) -> None:
        while self.pause_wanted:
            await asyncio.sleep(LOOK_EVERY_S)
            self.progress.progressed()

    async def watched(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` until it ends, or until the watcher has a reason to end it.

        Raises what the work raises; Cancelled, AttemptRefused, or AttemptFailed for a stall.
        """
        working, watching = asyncio.create_task(work), asyncio.create_task(self._watch())
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
                await asyncio.wait({working}, timeout=GRACE_S)
        finally:
            working.cancel()
            watching.cancel()
        if working.done() and not working.cancelled():
            return working.result()
        return watching.result()

    async def _watch(self) -> None:
        """Only ever ends by raising why the work has to end."""
        while True:
            if self._control.ended_because is not None:
                raise AttemptRefused(self._control.ended_because)
            if self._control.desired == "cancel":
                raise Cancelled
            if self.progress.silent_s > self._stall_timeout_s:
                raise AttemptFailed(self._stall())
            await self._control.change(timeout_s=min(1.0, self._stall_timeout_s / 4))

    def _stall(self) -> str:
        since = time.strftime("%H:%M:%S UTC", time.gmtime(self.progress.since))
        waited_for = self.progress.waiting_for or "nobody"
        return f"stalled: phase {self.progress.phase} of step {self.progress.step} waits for {waited_for} since {since}"
