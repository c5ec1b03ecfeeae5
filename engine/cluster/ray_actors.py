"""The processes of a run on Ray, as the plain classes that Ray makes actors of.

Each wraps what it carries and adds nothing but the way there; who makes, watches and replaces them: ray_workers.py.
Actors import what they need in their own process only; a rollout worker never loads torch.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayTaskError

from engine.cluster.garbage import collect_rarely
from engine.cluster.generator_client import GeneratorCall, GeneratorClient, GeneratorReply, GeneratorServer
from engine.cluster.generator_fleet import GeneratorFleet
from engine.cluster.process_meter import ProcessMeter, server_readings
from engine.cluster.ray_generators import Line
from engine.cluster.rollout_members import rollout_worker_over
from engine.judge_endpoint import ChatAnswer, ServedJudge
from engine.reporting.event_writer import Level
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import Collected, GroupKey, RolloutWorker
from engine.spec.run import RunSpec
from engine.spec.usage import ProcessReading, ServerReading


class _Placed:
    def node_id(self) -> str:
        """The node on which the actor stands, as Ray calls it."""
        node: str = ray.get_runtime_context().get_node_id()
        return node


class LearnerActor(_Placed):
    def __init__(self, spec: RunSpec, recordings: Path | None) -> None:
        self._spec, self._recordings = spec, recordings
        self._learner: Any = None
        self._leader: Any = None
        self._meter = ProcessMeter("learner", "learner", has_gpus=spec.resources.device == "cuda")

    def lead(self) -> tuple[str, Path]:
        """The node, and the folder there in which the trainer's other ranks find their leader."""
        from engine.cluster.members import leader_for

        self._leader = leader_for(self._spec)
        return self.node_id(), self._leader.folder

    def start(self) -> None:
        """Apart from the constructor, whose errors would arrive as the death of the actor."""
        from engine.cluster.members import learner_for

        self._learner = learner_for(self._spec, self._recordings, self._leader)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self._learner, method)(*arguments, **named)

    def node(self) -> str:
        """Its name for people, by which an operator finds it in Ray's own list."""
        return f"{os.uname().nodename} ({self.node_id()})"

    @ray.method(concurrency_group="meter")
    def reading(self) -> ProcessReading:
        """It answers while ``call`` is under way."""
        return self._meter.reading()


class RankActor(_Placed):
    """A rank of the trainer that is not the learner's.  It answers ``reading`` while it follows."""

    def __init__(self, name: str, *, has_gpus: bool) -> None:
        self._meter = ProcessMeter(name, "rank", has_gpus=has_gpus)

    def follow(self, folder: Path, number: int) -> None:
        """Never returns."""
        from engine.training.backends.ranks import follow

        follow(folder, number)

    def reading(self) -> ProcessReading:
        return self._meter.reading()


class GeneratorActor(_Placed):
    def __init__(self, spec: RunSpec, name: str) -> None:
        from engine.cluster.generators import generator_for

        self._generator: Any = generator_for(spec.model, spec.resources, seed=spec.seed)
        self._server = GeneratorServer(self._generator)
        self._suspended = False
        self._loading: asyncio.Future[None] | None = None
        self._meter = ProcessMeter(name, "generator", has_gpus=spec.resources.device == "cuda")

    async def load_weights(self, source: Any, version: int) -> None:
        from engine.cluster.generators import hand_over_weights

        handing_over = hand_over_weights(self._generator, source, version, stays_suspended=self._suspended)
        self._loading = asyncio.ensure_future(handing_over)
        await self._loading

    async def suspend(self) -> int:
        self._suspended = True
        await self._generator.suspend()
        return 0

    async def resume(self) -> int:
        self._suspended = False
        await self._generator.resume()
        return 0

    async def vacate(self) -> int:
        """This and the next two are asked of one of several generators alone."""
        turns: int = await self._generator.vacate()
        return turns

    async def occupy(self) -> int:
        await self._generator.occupy()
        return 0

    async def move_waiting(self) -> int:
        turns: int = await self._generator.move_waiting()
        return turns

    async def submit(self, caller: str, requests: Sequence[GeneratorCall], released: Sequence[str]) -> None:
        await self._server.submit(caller, requests, released)

    async def replies(self, caller: str) -> list[GeneratorReply]:
        return await self._server.replies(caller)

    async def disconnect(self, caller: str) -> None:
        await self._server.disconnect(caller)

    async def reports(self) -> Sequence[tuple[Level, str]]:
        from engine.cluster.generators import reports_of

        return reports_of(self._generator)

    async def reading(self) -> ProcessReading:
        return await asyncio.to_thread(self._meter.reading)

    async def readings(self) -> tuple[list[ProcessReading], list[ServerReading]]:
        """Its own process, and those of its servers on this machine; how the servers fare."""
        from engine.cluster.generators import servers_of

        servers = await servers_of(self._generator)
        return [await self.reading(), *await asyncio.to_thread(server_readings, servers)], servers

    async def close(self) -> None:
        """End its own servers; those of others sample on, also where they were just being given weights."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait({self._loading})
        self._generator.close()


class JudgeActor(_Placed):
    """Ray starts it again where its process dies, and asks again what it had not answered."""

    def __init__(self, spec: RunSpec) -> None:
        from engine.cluster.generators import judge_for

        made = judge_for(spec.resources)
        assert made is not None  # a run without a judge has no such actor
        self._judge = made
        self._meter = ProcessMeter("judge", "judge")

    async def ask(self, document: Mapping[str, Any], timeout_s: float) -> ChatAnswer:
        return await self._judge.ask(document, timeout_s)

    async def start(self) -> None:
        self._judge.start()

    async def reports(self) -> Sequence[tuple[Level, str]]:
        return self._judge.reports()

    async def reading(self) -> ProcessReading:
        return await asyncio.to_thread(self._meter.reading)

    async def readings(self) -> tuple[list[ProcessReading], list[ServerReading]]:
        """As ``GeneratorActor.readings``."""
        servers = await self._judge.servers()
        return [await self.reading(), *await asyncio.to_thread(server_readings, servers)], servers

    async def close(self) -> None:
        self._judge.close()


class RolloutActor(_Placed):
    def __init__(self, name: str, spec: RunSpec, security_log: Path, judge: Any = None) -> None:
        """``judge`` is the actor of that name, where the run has one."""
        self._spec, self._security_log = spec, security_log
        self._served_judge = None if judge is None else asking(judge)
        self._meter = ProcessMeter(name, "rollout")
        self._open = AsyncExitStack()
        self._sandboxes: Any = None
        self._callers: list[str] = []
        """The names under which this actor is known to the generators of ``_fleet``."""
        self._fleet = GeneratorFleet()
        self._worker: RolloutWorker | None = None
        """It plays all groups."""

    async def clock(self) -> float:
        """Unix seconds, here."""
        return time.time()

    async def start(self) -> None:
        from engine.cluster.sandboxes import opened_parts

        self._sandboxes = await self._open.enter_async_context(
            opened_parts(self._spec.environment, self._security_log, size=self._spec.resources.sandboxes)
        )
        collect_rarely()

    async def collect(self, requests: Sequence[EpisodeRequest], lines: Sequence[Line]) -> Collected:
        """Raises GeneratorLost as soon as a generator is gone.  ``lines`` are for this collection alone."""
        async with AsyncExitStack() as open_lines:
            clients = [await open_lines.enter_async_context(_connected(_RayConnection(*line))) for line in lines]
            worker = rollout_worker_over(self._spec, GeneratorFleet(clients), self._sandboxes, self._served_judge)
            return await worker.collect(requests)

    async def collect_group(
        self, requests: Sequence[EpisodeRequest], lines: Sequence[Line], enough: int, fewest: int
    ) -> Collected:
        """Raises GeneratorLost where a generator dies that has one of its turns.  All groups share the ``lines``."""
        self._connect(lines)
        if self._worker is None:
            self._worker = rollout_worker_over(self._spec, self._fleet, self._sandboxes, self._served_judge)
        return await self._worker.collect_group(requests, enough=enough, fewest=fewest)

    def _connect(self, lines: Sequence[Line]) -> None:
        """To whoever is new among the generators."""
        for number, (generator, caller) in enumerate(lines):
            if self._callers[number : number + 1] != [caller]:
                self._callers[number : number + 1] = [caller]
                self._fleet.replace(number, GeneratorClient(_RayConnection(generator, caller)))

    async def welcome(self) -> None:
        self._fleet.welcome()

    async def abort_group(self, key: GroupKey) -> None:
        if self._worker is not None:
            self._worker.abort_group(key)

    async def hold(self) -> None:
        if self._worker is not None:
            await self._worker.hold()

    async def go_on(self) -> None:
        if self._worker is not None:
            self._worker.go_on()

    async def close(self) -> None:
        await self._open.aclose()

    async def reading(self) -> ProcessReading:
        return self._meter.reading()


def asking(judge: Any) -> ServedJudge:
    """A ``ServedJudge`` over an actor's handle."""

    async def ask(document: Mapping[str, Any], timeout_s: float) -> ChatAnswer:
        try:
            answer: ChatAnswer = await judge.ask.remote(document, timeout_s)
        except RayTaskError as error:  # what the plain class raised, without Ray's frame around it
            raise error.cause from error
        return answer

    return ask


class _RayConnection:
    """A ``GeneratorConnection`` over an actor's handle."""

    def __init__(self, generator: Any, caller: str) -> None:
        self._generator = generator
        self._caller = caller

    async def submit(self, requests: Sequence[GeneratorCall], released: Sequence[str]) -> None:
        await self._generator.submit.remote(self._caller, requests, released)

    async def replies(self) -> list[GeneratorReply]:
        replies: list[GeneratorReply] = await self._generator.replies.remote(self._caller)
        return replies

    async def disconnect(self) -> None:
        await self._generator.disconnect.remote(self._caller)


@asynccontextmanager
async def _connected(connection: _RayConnection) -> AsyncIterator[GeneratorClient]:
    client = GeneratorClient(connection)
    try:
        yield client
    finally:
        await client.close()
