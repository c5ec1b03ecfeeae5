"""The detectors of many sandboxes, in a thread of their own: no gateway and no caller ever waits for one.

    records, commands ──► feed ──► queue ──► thread: the sandbox's Suite ──► on_finding

A detector that raises is blind to what it was shown, and what it was shown was chosen by hostile
code.  So its failure is a finding itself, as severe as any.
"""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from queue import SimpleQueue

from sandboxes.egress.detectors.finding import DetectorEvent, Finding, RuleInfo, finding
from sandboxes.egress.detectors.suite import Suite
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord

log = logging.getLogger(__name__)

DETECTOR_FAILED = RuleInfo(
    "detector-failed",
    "A detector failed at what the sandbox did",
    "critical",
    "Trustworthiness",
    "T1562",
    "errors of a detector, which is blind to what it was shown",
    "nothing",
    "report it: it is a defect",
)
MOST_SANDBOXES = 1024
"""So many sandboxes are remembered; the one that was silent for longest is forgotten first."""


class Sentinel:
    """``make_suite`` gives each sandbox detectors of its own; ``on_finding`` is called in the sentinel's thread."""

    def __init__(self, make_suite: Callable[[], Suite], on_finding: Callable[[Finding], None]) -> None:
        self._make_suite = make_suite
        self._on_finding = on_finding
        self._suites: OrderedDict[str, Suite] = OrderedDict()
        self._queue: SimpleQueue[DetectorEvent | Callable[[], None] | None] = SimpleQueue()
        self._feeding = threading.Lock()
        self._fed = self._looked_at = 0
        """Events: put into the queue, and done with.  The second is the thread's alone to write."""
        self._thread = threading.Thread(target=self._run, name="sentinel", daemon=True)
        self._thread.start()

    def feed(self, event: DetectorEvent) -> None:
        """From any thread.  Events of one sandbox in order of time."""
        with self._feeding:
            self._fed += 1
        self._queue.put(event)

    def govern(self, sandbox: str, policy: EgressPolicy) -> None:
        """What is fed from now on of this sandbox is judged by what this policy lets it reach."""

        def govern() -> None:
            self._suite(sandbox).policy = policy

        self._queue.put(govern)

    async def settled(self) -> None:
        """Return when everything fed so far was looked at, and all findings were told.

        What ``on_finding`` has sent to the event loop by then has run.
        """
        if self._looked_at == self._fed:
            await asyncio.sleep(0)  # callbacks run in their order: those of a finding before whatever comes next
            return
        loop = asyncio.get_running_loop()
        looked_at = asyncio.Event()
        self._queue.put(lambda: _notify(loop, looked_at))
        await looked_at.wait()

    def close(self) -> None:
        """Look at what is left and end.  Twice is fine."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if callable(item):
                item()
                continue
            for alarm in self._look(item):
                try:
                    self._on_finding(alarm)
                except Exception:
                    log.exception("finding %s of sandbox %s could not be reported", alarm.rule, alarm.sandbox)
            self._looked_at += 1

    def _look(self, event: DetectorEvent) -> list[Finding]:
        sandbox = event.attempt.sandbox if isinstance(event, EgressRecord) else event.sandbox
        try:
            return self._suite(sandbox).feed(event)
        except Exception as error:
            log.exception("a detector failed at an event of sandbox %s", sandbox)
            evidence = f"{type(error).__name__}: {error}"
            return [finding(DETECTOR_FAILED, event, type(error).__name__, [evidence])]

    def _suite(self, sandbox: str) -> Suite:
        if sandbox not in self._suites:
            self._suites[sandbox] = self._make_suite()
            if len(self._suites) > MOST_SANDBOXES:
                self._suites.popitem(last=False)
        self._suites.move_to_end(sandbox)
        return self._suites[sandbox]


def _notify(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
