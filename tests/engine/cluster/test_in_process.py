"""What the workers of one process do with generators, without a model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from engine.cluster.in_process import InProcessWorkers
from engine.inference.interface import Generator
from engine.spec.run import RunSpec


class Learner:
    """Its weights are called by the number of updates that made them."""

    updates = 0

    def weights(self) -> str:
        return f"after {self.updates} updates"


class Loaded:
    """A generator that remembers what it was given, and by which name."""

    def __init__(self) -> None:
        self.weights: list[tuple[str, int]] = []

    async def load_weights(self, source: str, version: int) -> None:
        self.weights.append((source, version))

    async def suspend(self) -> None: ...

    async def resume(self) -> None: ...

    async def vacate(self) -> int:
        return 0

    async def occupy(self) -> None: ...

    async def move_waiting(self) -> int:
        return 0


async def test_a_generator_that_comes_back_between_an_update_and_its_exchange_gets_what_the_others_have(
    tmp_path: Path,
) -> None:
    spec = RunSpec.model_validate({"name": "x", "resources": {"generators": 2}})
    workers: Any = InProcessWorkers(spec, security_log=tmp_path)
    workers._learner, workers._judge = Learner(), None
    workers._worker = SimpleNamespace(go_on=lambda: None)
    generators = [Loaded(), Loaded()]
    for generator in generators:
        workers._generators.add(cast(Generator, generator))
    await workers.sync_weights(0)
    await workers.suspend()
    workers._learner.updates = 1
    await workers.sync_weights(1)
    workers._learner.updates = 2
    await workers.resume()
    assert [generator.weights for generator in generators] == [[("after 0 updates", 0), ("after 1 updates", 1)]] * 2
    await workers.close()
