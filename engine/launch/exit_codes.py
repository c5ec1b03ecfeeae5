"""How an attempt ends, as an exit code that whoever started it can act on."""

import asyncio
import logging
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.cluster.workers import ActorLost
from engine.failures import AttemptFailed, AttemptRefused, RunFailed, with_remedy
from engine.loop.checkpoint import CheckpointError
from engine.loop.loop import Ending, Loop
from engine.reporting.event_writer import EventWriter
from engine.reporting.spool import SpoolError

log = logging.getLogger("engine")

ENDED = 0
"""Succeeded or cancelled; ``finished`` says which."""
ATTEMPT_FAILED = 1
"""There is no ``finished``: another attempt may go on from the checkpoint."""
BAD_SPEC = 2
RUN_FAILED = 3
"""``finished`` says why; another attempt would not help."""


class Attempt:
    """Runs the loop once; keeps how it ended."""

    def __init__(self, loop: Loop, events: EventWriter) -> None:
        self._loop = loop
        self._events = events
        self.ending: Ending | None = None
        self.reason: str | None = None

    def run(self, signals: dict[signal.Signals, Callable[[], None]]) -> int:
        """The exit code.  ``signals`` are handled while the loop runs, and have their old meaning afterwards."""
        try:
            self.ending = asyncio.run(self._run(signals))
            return ENDED
        except RunFailed as failure:
            self.reason = str(failure)
            return RUN_FAILED
        except AttemptRefused as refusal:
            self.reason = str(refusal)
        except SpoolError as error:  # nothing can be logged any more but here
            self.reason = str(error)
        except (AttemptFailed, ActorLost, CheckpointError) as failure:
            self._report(str(failure))
        except Exception as error:
            log.exception("the attempt stumbled")
            self._report(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
        return ATTEMPT_FAILED

    async def _run(self, signals: dict[signal.Signals, Callable[[], None]]) -> Ending:
        with _handled(signals):
            return await self._loop.run()

    def _report(self, reason: str, details: str | None = None) -> None:
        self.reason = with_remedy(reason)
        try:
            self._events.log("error", "attempt", with_remedy(details or reason))
        except SpoolError as error:
            log.error("%s; and %s", self.reason, error)


@contextmanager
def _handled(signals: dict[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number, handler in signals.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
