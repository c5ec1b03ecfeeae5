"""Where the loop is: what the heartbeat says, and what a stall is measured by."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine.cluster.workers import WorkerGroup
from engine.spec.event import Heartbeat, Phase
from engine.spec.usage import Usage


class Progress:
    """Written by the loop, read by the shipper's thread: every field is one assignment."""

    def __init__(self, total_steps: int, workers: WorkerGroup) -> None:
        self.step = 0
        self.total_steps = total_steps
        self.phase: Phase = "start"
        self.since = time.time()
        self.decided_through: int | None = None
        """As in ``Heartbeat``: known once the attempt knows from which state it goes on."""
        self.usage: Usage | None = None
        """As in ``Heartbeat``: the newest measurement."""
        self._workers = workers
        self._waiting_on: str | None = None
        self._alive = time.monotonic()
        self._step_seconds: float | None = None

    def enter(self, phase: Phase, step: int) -> None:
        self.phase, self.step = phase, step
        self.progressed()

    def progressed(self) -> None:
        """A long phase shows that it is alive: its time begins anew."""
        self.since, self._alive = time.time(), time.monotonic()

    def step_took(self, seconds: float) -> None:
        self._step_seconds = seconds if self._step_seconds is None else 0.7 * self._step_seconds + 0.3 * seconds

    @contextmanager
    def waiting_on(self, name: str) -> Iterator[None]:
        """The loop waits for somebody outside the run's workers."""
        self._waiting_on = name
        try:
            yield
        finally:
            self._waiting_on = None

    @property
    def waiting_for(self) -> str | None:
        return self._waiting_on or self._workers.waiting_for

    @property
    def silent_s(self) -> float:
        """Return how long nothing has moved."""
        return time.monotonic() - self._alive

    @property
    def eta_s(self) -> float | None:
        """Return how long the steps that are left will take if they take as long as the last ones did."""
        left = max(self.total_steps - self.step, 0)
        return None if self._step_seconds is None else left * self._step_seconds

    @property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(
            step=self.step,
            total_steps=self.total_steps,
            phase=self.phase,
            phase_since=self.since,
            waiting_for=self.waiting_for,
            eta_s=self.eta_s,
            decided_through=self.decided_through,
            usage=self.usage,
        )
