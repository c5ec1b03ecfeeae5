"""One attempt at a run, in a thread, with the service that it ships to."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.cluster.in_process import InProcessWorkers
from engine.launch.exit_codes import Attempt
from engine.loop.checkpoint import Checkpoints
from engine.loop.loop import Loop
from engine.loop.quarantine import Quarantine
from engine.loop.run_control import RunControl
from engine.reporting.event_writer import EventWriter
from engine.reporting.security_events import SecurityEvents, log_folder
from engine.reporting.shipper import Shipper
from engine.reporting.spool import Spool
from engine.spec.run import RunSpec
from tests.engine.dying import begin_of


class Rig:
    """One attempt in a thread, with the service that it ships to."""

    def __init__(
        self, spec: RunSpec, folder: Path, service: Any, workers: type[InProcessWorkers] = InProcessWorkers
    ) -> None:
        self.service = service
        self.spool = Spool(folder / "spool")
        self.control = RunControl()
        self.events = EventWriter(self.spool, service.attempt)
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=3)
        self.quarantine = Quarantine()
        security_events = SecurityEvents(log_folder(folder), self.events, self.quarantine.alerted)
        members = workers(spec, security_log=log_folder(folder))
        loop = Loop(spec, members, self.events, self.checkpoints, self.control, self.quarantine, security_events)
        self.shipper = Shipper(
            self.spool,
            service.ingest,
            heartbeat=lambda: loop.progress.heartbeat,
            on_change=self._steer,
            on_review_decisions=self.quarantine.decided,
            heartbeat_s=0.05,
        )
        self.attempt = Attempt(loop, self.events)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run)

    def start(self) -> "Rig":
        self.shipper.start()
        self._thread.start()
        return self

    def ended(self) -> int | None:
        self._thread.join(120)
        assert not self._thread.is_alive(), "the attempt does not end"
        assert self.shipper.flush(20) or self.shipper.ended
        self.shipper.stop()
        self.spool.close()
        return self.code

    def _run(self) -> None:
        self.code = self.attempt.run({})

    def _steer(self) -> None:
        if self.shipper.ended:
            self.control.end(str(self.shipper.ended))
        else:
            self.control.want(self.shipper.desired)


def entered(phase: str, step: int) -> Callable[[Any], bool]:
    return lambda service: any(begin_of(phase, step).items() <= event.items() for event in service.events)
