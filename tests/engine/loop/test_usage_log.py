"""What the loop makes of its workers' readings: events, a step's metrics, and no stall while servers start."""

import asyncio
import json
import os
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from engine.cluster.process_meter import ProcessMeter
from engine.cluster.workers import WorkerGroup
from engine.loop.progress import Progress
from engine.loop.state import RunState
from engine.loop.usage import UsageLog
from engine.reporting.event_writer import EventWriter
from engine.reporting.spool import Spool
from engine.spec.run import RunSpec
from engine.spec.usage import Health, ServerReading, UsageReading

SERVER = ServerReading(
    0, "http://127.0.0.1:1", "up", "", 0, 0, 0, 0, 0, 0, restarts=0, version=0, began_at=1.0, pid=None
)


class Measured:
    """Workers that are one process, this one, with servers in these healths."""

    waiting_for = "generator"

    def __init__(self, *healths: Health) -> None:
        self.servers = tuple(replace(SERVER, number=number, health=health) for number, health in enumerate(healths))
        self.meter = ProcessMeter("run", "all")

    async def usage(self) -> UsageReading:
        return UsageReading(time.time(), (self.meter.reading(),), self.servers)


class Broken(Measured):
    async def usage(self) -> UsageReading:
        raise ValueError("no meter")


def log_of(
    measured: Measured, spool: Spool, spec: RunSpec, *, stall_timeout_s: float = 0.4
) -> tuple[UsageLog, Progress]:
    workers = cast(WorkerGroup, measured)
    progress, events = Progress(3, workers), EventWriter(spool, 1)
    return UsageLog(workers, events, RunState(spec=spec), progress, stall_timeout_s=stall_timeout_s), progress


def written(spool: Spool) -> list[dict[str, Any]]:
    return [json.loads(line) for line in spool.read(1, max_events=100, max_bytes=10**6)]


@pytest.mark.parametrize(
    ("healths", "is_alive"),
    [
        (("starting", "up"), True),
        (("down", "given-up"), True),
        (("down", "up"), False),
        (("given-up",), False),
        ((), False),
    ],
)
async def test_time_in_which_turns_wait_for_servers_that_come_is_no_stall(
    spool: Spool, small_spec: RunSpec, healths: tuple[Health, ...], is_alive: bool
) -> None:
    usage, progress = log_of(Measured(*healths), spool, small_spec)
    usage.begin()
    await asyncio.sleep(0.5)
    await usage.close()
    assert (progress.silent_s < 0.3) == is_alive


async def test_the_heartbeat_holds_what_was_taken_since_the_last_measurement_and_metrics_since_the_step(
    spool: Spool, small_spec: RunSpec
) -> None:
    usage, progress = log_of(Measured("up"), spool, small_spec)
    await usage.measure()
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    metrics = await usage.step_metrics()
    await usage.measure()
    measured = progress.heartbeat.usage
    assert measured is not None
    assert [process.pid for process in measured.processes] == [os.getpid()]
    assert measured.processes[0].cores > 0
    assert [server.health for server in measured.servers] == ["up"]
    assert metrics["servers/up"] == 1
    assert metrics["perf/memory_mib_all"] == metrics["perf/rss_mib"] > 20
    assert metrics["perf/cpu_all"] > 0


async def test_a_meter_that_fails_is_named_in_the_log_and_ends_nothing(spool: Spool, small_spec: RunSpec) -> None:
    usage, _ = log_of(Broken(), spool, small_spec)
    usage.begin()
    await asyncio.sleep(0.3)
    await usage.close()
    (line,) = written(spool)
    assert line["message"] == "use is not measured any more: ValueError: no meter"
