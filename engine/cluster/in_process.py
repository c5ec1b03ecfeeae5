"""All workers in one process, without Ray: for ``engine train --in-process`` and for tests.

Only a trainer of several ranks has more processes, one for each of the others.

The learner works in a thread of its own, so the loop stays awake; each generator brings its own
thread; the episodes run on the loop's event loop.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from engine.cluster.garbage import collect_rarely
from engine.cluster.generator_group import GeneratorGroup
from engine.cluster.generators import LocalGenerators, generator_for, judge_for, reports_of, servers_of
from engine.cluster.members import learner_for
from engine.cluster.placement import colocated_generators, generator_gpus
from engine.cluster.process_meter import ProcessMeter, server_readings, tree_reading
from engine.cluster.rank_processes import RankProcesses, rank_processes_for
from engine.cluster.rollout_members import rollout_worker_over
from engine.cluster.sandboxes import opened_parts
from engine.cluster.workers import Replacements, Waiting
from engine.inference.interface import Level
from engine.judge_endpoint import ChatAnswer
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import Collected, GroupKey
from engine.spec.rollout_group import RolloutGroup
from engine.spec.run import RunSpec
from engine.spec.usage import UsageReading
from engine.training.columns import CreditColumns, Updated, UpdateRequest
from engine.training.stages import FilesRead, StageBegun

T = TypeVar("T")
Report = Callable[[Level, str], None]


class InProcessWorkers:
    """A ``WorkerGroup``.  Nothing is ever replaced: only the trainer's ranks can die alone, and they are its weights.

    ``recordings`` is the folder below which recorded trajectories lie, by default that of the environment;
    what the sandboxes do is written below ``security_log``.  ``report`` is told what happens to a generator's servers.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        security_log: Path,
        recordings: Path | None = None,
        report: Report = lambda level, message: None,
    ) -> None:
        self._spec = spec
        self._report = report
        self._security_log = security_log
        self._recordings = recordings
        self._waiting = Waiting()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self._open = AsyncExitStack()
        self._version: int | None = None
        self._ranks: RankProcesses | None = None
        self._meter = ProcessMeter("run", "all", has_gpus=spec.resources.device == "cuda")
        self._generators = LocalGenerators()
        self._group = GeneratorGroup(spec.resources, self._generators)

    @property
    def replacements(self) -> Replacements:
        return Replacements()

    @property
    def waiting_for(self) -> str | None:
        return self._waiting.name

    async def start(self) -> None:
        ranks = rank_processes_for(self._spec)
        if ranks is not None:
            self._open.callback(ranks.close)
            self._ranks = ranks
        leader = None if ranks is None else ranks.leader
        self._learner = await self._learning(lambda: learner_for(self._spec, self._recordings, leader))
        for _ in range(self._spec.resources.generators):
            generator = generator_for(self._spec.model, self._spec.resources, seed=self._spec.seed)
            self._open.callback(generator.close)
            self._generators.add(generator)
        self._start_judge()
        pools = await self._open.enter_async_context(
            opened_parts(self._spec.environment, self._security_log, size=self._spec.resources.sandboxes)
        )
        self._worker = rollout_worker_over(self._spec, self._generators.asked, pools, self.ask_judge)
        collect_rarely()

    def _start_judge(self) -> None:
        resources = self._spec.resources
        apart = resources.generators - colocated_generators(resources)
        self._judge = judge_for(resources, first_gpu=apart * generator_gpus(resources))
        if self._judge is not None:
            self._open.callback(self._judge.close)
            self._judge.start()

    async def ask_judge(self, document: Mapping[str, Any], timeout_s: float) -> ChatAnswer:
        assert self._judge is not None  # the spec refuses who asks a judge that is not started
        with self._waiting.on("judge"):
            return await self._judge.ask(document, timeout_s)

    async def read_on(self) -> FilesRead:
        return await self._learning(self._learner.read_on)

    async def stage(self, number: int) -> StageBegun:
        return await self._learning(lambda: self._learner.stage(number))

    async def supervised(self, number: int, first: int, last: int) -> dict[str, float]:
        return await self._learning(lambda: self._learner.supervised(number, first, last))

    async def sync_weights(self, version: int) -> None:
        if version != self._version:
            self._generators.weights = await self._learning(self._learner.weights)
            with self._waiting.on("generator"):
                if self._spec.schedule.weight_exchange == "episode-borders":
                    await self._worker.hold()
                try:
                    await self._group.load(version)
                finally:
                    self._worker.go_on()
            self._version = version
            self._pass_on_reports()

    async def suspend(self) -> int:
        return await self._group.lend()

    async def resume(self) -> None:
        self._group.returned()
        if self._version is not None:  # the learner's may be newer by now
            await self._group.load(self._version)
        await self._group.go_on()

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        try:
            with self._waiting.on("rollout-0"):
                return await self._worker.collect(requests)
        finally:
            self._pass_on_reports()

    async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
        return await self._worker.collect_group(requests, enough=enough, fewest=fewest)

    async def abort_group(self, key: GroupKey) -> None:
        self._worker.abort_group(key)

    async def credit(
        self, groups: Sequence[RolloutGroup], released: Sequence[RolloutGroup], *, step: int
    ) -> dict[str, CreditColumns]:
        return await self._learning(lambda: self._learner.credit(groups, released, step=step))

    async def update(self, request: UpdateRequest) -> Updated:
        return await self._learning(lambda: self._learner.update(request))

    async def save(self, folder: Path) -> None:
        await self._learning(lambda: self._learner.save(folder))

    async def load(self, folder: Path) -> None:
        await self._learning(lambda: self._learner.load(folder))
        self._version = None
        self._group.forget_weights()

    async def usage(self) -> UsageReading:
        own = await asyncio.to_thread(self._meter.reading)
        pids = [] if self._ranks is None else self._ranks.pids()
        ranks = [tree_reading(f"rank-{number}", "rank", pid) for number, pid in enumerate(pids, start=1)]
        servers = await servers_of(self._generators.first)
        if self._judge is not None:
            servers = [*servers, *await self._judge.servers()]
        processes = [own, *(rank for rank in ranks if rank is not None), *server_readings(servers)]
        return UsageReading(time.time(), tuple(processes), tuple(servers))

    async def close(self) -> None:
        """Work in the learner's thread goes on to its end, but nobody waits for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await self._open.aclose()

    def _pass_on_reports(self) -> None:
        """Raises ServersLost where the judge has no server left: nothing would be judged any more."""
        of_judge = [] if self._judge is None else self._judge.reports()
        for level, message in (*reports_of(self._generators.first), *of_judge):
            self._report(level, message)

    async def _learning(self, call: Callable[[], T]) -> T:
        with self._waiting.on("learner"):
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
