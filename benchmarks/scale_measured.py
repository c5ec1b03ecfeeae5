"""Constants of scale_constants.py that this machine can measure: Ray's calls and bytes, and the run's log."""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import machine
from benchmarks.distribution import Distribution
from engine.cluster.ray_token import use_private_token

ROUNDS = 5
CALLS = 400
PAYLOAD_BYTES = 64 * 2**20
EVENTS = 200


def measured() -> dict[str, float | dict[str, object]]:
    """Seconds, medians of ``ROUNDS``; ``machine`` says where and how busy it was."""
    with TemporaryDirectory(prefix="palestra-scale-") as folder:
        use_private_token(Path(folder) / "ray_token")
        return {**_of_ray(), **_of_log(Path(folder)), "machine": dict(machine.description())}


def _of_ray() -> dict[str, float]:
    """Imported late: Ray reads its token when it is imported."""
    import numpy as np
    import ray

    from engine.cluster.ray_connection import private_ray

    class Server:
        async def call(self, request: object) -> object:
            return request

        def size(self, payload: "np.ndarray") -> int:
            return int(payload.nbytes)

    with private_ray():
        server: Any = ray.remote(Server).options(num_cpus=0, max_concurrency=1000).remote()
        request = list(range(100))
        ray.get(server.call.remote(request))
        payload = np.zeros(PAYLOAD_BYTES, dtype=np.uint8)
        return {
            "ray_round_trip_s": _median(lambda: [ray.get(server.call.remote(request)) for _ in range(CALLS)], CALLS),
            "ray_call_s": _median(lambda: ray.get([server.call.remote(request) for _ in range(CALLS)]), CALLS),
            "ray_byte_s": _median(lambda: ray.get(server.size.remote(ray.put(payload))), PAYLOAD_BYTES),
        }


def _of_log(folder: Path) -> dict[str, float]:
    from engine.reporting.event_writer import EventWriter
    from engine.reporting.spool import Spool

    spool = Spool(folder / "spool")
    events = EventWriter(spool, 1)

    def logged() -> None:
        for _ in range(EVENTS):
            events.log("info", "scale", "x" * 4000)

    try:
        return {"event_s": _median(logged, EVENTS)}
    finally:
        spool.close()


def _median(work: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        work()
        seconds.append((time.perf_counter() - begun) / times)
    return Distribution.of(seconds).median
