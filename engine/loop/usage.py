"""What a run's processes take and how its servers fare, told while it runs.

Every member answers with a reading (engine/spec/usage.py).  The differences of two readings are what the heartbeat
tells, anew every ``EVERY_S`` seconds and when the run ends, and what a step's metrics tell by role.

While turns wait for servers that are on their way, nothing else moves: that is no stall.  Each start has a limit of its
own (``resources.sglang.start_timeout_s``), and so has their number.
"""

import asyncio
from collections import defaultdict
from statistics import fmean

from engine.cluster.workers import WorkerGroup
from engine.loop.progress import Progress
from engine.loop.state import RunState
from engine.reporting.event_writer import EventWriter
from engine.spec.usage import MOST, ProcessReading, ProcessUse, ServerReading, ServerUse, Usage, UsageReading

EVERY_S = 10.0
MIB = 2**20


class UsageLog:
    """Belongs to one attempt; ``begin`` when its workers live."""

    def __init__(
        self,
        workers: WorkerGroup,
        events: EventWriter,
        state: RunState,
        progress: Progress,
        *,
        stall_timeout_s: float,
    ) -> None:
        self._workers, self._events, self._state, self._progress = workers, events, state, progress
        self._every_s = min(EVERY_S, stall_timeout_s / 4)
        self._at_measurement = self._at_step = UsageReading(0.0, ())
        """The readings of which the heartbeat and the last step's metrics were made."""
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._watching = asyncio.create_task(self._watch())
        self._watching.add_done_callback(self._ended)

    async def measure(self) -> None:
        """From now on the heartbeat has what was taken since it was last measured."""
        reading, before = await self._read(), self._at_measurement
        processes, servers = process_uses(before, reading), server_uses(before, reading)
        self._progress.usage = Usage(
            at=reading.at, step=self._state.finished_steps, processes=processes[:MOST], servers=servers[:MOST]
        )
        self._at_measurement = reading

    async def step_metrics(self) -> dict[str, float]:
        """Since the step before: by role what ``by_role`` says, of the servers what ``of_servers`` says.
        ``perf/rss_mib`` is the memory of all."""
        reading, before = await self._read(), self._at_step
        self._at_step = reading
        values = by_role(process_uses(before, reading)) | of_servers(server_uses(before, reading))
        return {"perf/rss_mib": reading.memory_bytes / MIB} | values

    async def close(self) -> None:
        """Twice is fine."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.measure()

    async def _read(self) -> UsageReading:
        reading = await self._workers.usage()
        if reading.awaits_servers:
            self._progress.progressed()
        self._state.peak_rss_mib = max(self._state.peak_rss_mib, reading.memory_bytes / MIB)
        return reading

    def _ended(self, watching: asyncio.Task[None]) -> None:
        """A run goes on without being measured, and its log says so."""
        if not watching.cancelled() and (error := watching.exception()) is not None:
            self._events.log("warning", "usage", f"use is not measured any more: {type(error).__name__}: {error}")


def process_uses(before: UsageReading, now: UsageReading) -> list[ProcessUse]:
    """What each process took between two readings; one that was not there before, since it began."""
    known = {(process.name, process.pid): process for process in before.processes}  # pids of two nodes may be equal
    return [
        _process_use(known.get((process.name, process.pid)), before.at, process, now.at) for process in now.processes
    ]


def _process_use(before: ProcessReading | None, before_at: float, process: ProcessReading, at: float) -> ProcessUse:
    if before is None:
        since, cpu_s = process.began_at, 0.0
    else:
        since, cpu_s = before_at, before.cpu_s
    return ProcessUse(
        name=process.name,
        role=process.role,
        pid=process.pid,
        cores=_rate(process.cpu_s - cpu_s, at - since),
        memory_bytes=process.memory_bytes,
        gpus=list(process.gpus),
    )


def server_uses(before: UsageReading, now: UsageReading) -> list[ServerUse]:
    known = {(server.role, server.number): server for server in before.servers}
    return [_server_use(known.get((server.role, server.number)), before.at, server, now.at) for server in now.servers]


def _server_use(before: ServerReading | None, before_at: float, server: ServerReading, at: float) -> ServerUse:
    if before is None or before.began_at != server.began_at:  # of a generator that was replaced
        since, sampled_tokens = server.began_at, 0
    else:
        since, sampled_tokens = before_at, before.sampled_tokens
    return ServerUse(
        role=server.role,
        number=server.number,
        url=server.url,
        health=server.health,
        reason=server.reason[:300],
        running=server.running,
        queued=server.queued,
        in_hand=server.in_hand,
        tokens_per_s=_rate(server.sampled_tokens - sampled_tokens, at - since),
        cache_hit_rate=_rate(server.cached_tokens, server.prompt_tokens),
        restarts=server.restarts,
        version=server.version,
    )


def by_role(uses: list[ProcessUse]) -> dict[str, float]:
    """``perf/cpu_<role>`` in processors and ``perf/memory_mib_<role>``, both over all processes of a role;
    ``perf/gpu_<role>`` is the mean share of its GPUs that was busy."""
    values: dict[str, float] = defaultdict(float)
    busy: dict[str, list[float]] = defaultdict(list)
    for use in uses:
        values[f"perf/cpu_{use.role}"] += use.cores
        values[f"perf/memory_mib_{use.role}"] += use.memory_bytes / MIB
        busy[f"perf/gpu_{use.role}"] += [gpu.busy for gpu in use.gpus]
    return {**values, **{key: sum(shares) / len(shares) for key, shares in busy.items() if shares}}


def of_servers(uses: list[ServerUse]) -> dict[str, float]:
    """``servers/...`` of the policy's and ``judge_servers/...`` of the judge's, where there are any: sums over all of
    them, and the mean share of cache hits."""
    by_role = {"servers": "policy", "judge_servers": "judge"}
    return {
        f"{prefix}/{name}": value
        for prefix, role in by_role.items()
        for name, value in _of_one_role([use for use in uses if use.role == role]).items()
    }


def _of_one_role(uses: list[ServerUse]) -> dict[str, float]:
    if not uses:
        return {}
    return {
        "up": sum(use.health == "up" for use in uses),
        "running": sum(use.running or 0 for use in uses),
        "queued": sum(use.queued or 0 for use in uses),
        "tokens_per_s": sum(use.tokens_per_s for use in uses),
        "cache_hit_rate": fmean(use.cache_hit_rate for use in uses),
        "restarts": sum(use.restarts for use in uses),
    }


def _rate(what: float, of: float) -> float:
    """0 where a clock went back, or a child that was counted before has ended."""
    return max(what / of, 0.0) if of > 0 else 0.0
