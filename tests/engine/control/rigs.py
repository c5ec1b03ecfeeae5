"""One attempt at a run, in a thread, with the service that it ships to."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.control.checkpoint import Checkpoints
from engine.control.journal import Journal
from engine.control.local import LocalCrew
from engine.control.loop import Loop
from engine.control.outcome import Attempt
from engine.control.quarantine import Quarantine
from engine.control.shipper import Shipper
from engine.control.sightings import SIGHTINGS, Sightings
from engine.control.spool import Spool
from engine.control.steering import Steering
from engine.spec.run import RunSpec
from tests.engine.control.dying import begin_of


class Rig:
    """One attempt in a thread, with the service that it ships to."""

    def __init__(self, spec: RunSpec, folder: Path, service: Any, crew: type[LocalCrew] = LocalCrew) -> None:
        self.service = service
        self.spool = Spool(folder / "spool")
        self.steering = Steering()
        self.journal = Journal(self.spool, service.attempt)
        self.checkpoints = Checkpoints(folder / "checkpoints", keep=3)
        self.quarantine = Quarantine()
        sightings = Sightings(folder / SIGHTINGS, self.journal, self.quarantine.alerted)
        members = crew(spec, sightings=folder / SIGHTINGS)
        loop = Loop(spec, members, self.journal, self.checkpoints, self.steering, self.quarantine, sightings)
        self.shipper = Shipper(
            self.spool,
            service.ingest,
            pulse=lambda: loop.position.pulse,
            on_change=self._steer,
            on_rulings=self.quarantine.ruled,
            heartbeat_s=0.05,
        )
        self.attempt = Attempt(loop, self.journal)
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
            self.steering.end(str(self.shipper.ended))
        else:
            self.steering.want(self.shipper.desired)


def entered(phase: str, step: int) -> Callable[[Any], bool]:
    return lambda service: any(begin_of(phase, step).items() <= event.items() for event in service.events)
