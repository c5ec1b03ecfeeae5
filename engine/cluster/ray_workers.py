"""A run's members as Ray actors (ray_actors.py): made, watched, asked, replaced.

A dead rollout or generator actor is replaced and what it had in hand is asked for again: requests carry their seeds, so
the answer is the same under the same weights.  Many calls may find a death at once; the first one repairs.
A dead learner, or another rank of its trainer, took weights with it: ``ActorLost``, and the next attempt
goes on from the checkpoint.  Actors are not detached: all of them end with the driver.

Ray is imported by the files called ray_* of this folder alone.
"""

import asyncio
import contextlib
import shutil
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from engine.cluster.clocks import Clocks, Comparison
from engine.cluster.generator_client import GeneratorLost
from engine.cluster.generator_group import GeneratorGroup
from engine.cluster.process_meter import ProcessMeter
from engine.cluster.ray_actors import GeneratorActor, JudgeActor, LearnerActor, RankActor, RolloutActor, asking
from engine.cluster.ray_generators import RayGenerators, hang_up
from engine.cluster.ray_placement import RayPlacement
from engine.cluster.workers import ActorLost, Replacements, Waiting
from engine.judge_endpoint import ChatAnswer
from engine.reporting.event_writer import Level
from engine.rollout.requests import EpisodeRequest, shares
from engine.rollout.worker import Collected, GroupKey, group_key
from engine.spec.rollout_group import RolloutGroup
from engine.spec.run import RunSpec
from engine.spec.usage import ProcessReading, UsageReading
from engine.training.columns import CreditColumns, Updated, UpdateRequest
from engine.training.stages import FilesRead, StageBegun

REPLACEMENTS = 20
"""How many dead actors an attempt replaces before it gives up: more than bad luck."""
CALLS_AT_ONCE = 1000
"""An asyncio actor takes so many calls at once."""
REASON_S = 10.0
"""How long the learner may take to say why a rank of its trainer died."""
READING_S = 5.0
"""How long a member may take to say what it takes of its machine."""
CLOSING_S = 2.0
"""How long a rollout worker may take to close its sandboxes."""
CLOSING_SERVERS_S = 20.0
"""How long a generator or the judge may take to end its servers, and to remove the weights that it gave them."""

Report = Callable[[Level, str], None]


class RayWorkers:
    """A ``WorkerGroup``.  ``connection`` is entered by ``start``; ``report`` is told who lives, died and was replaced.

    ``recordings`` is the folder below which recorded trajectories lie, by default that of the learner's environment;
    what the sandboxes do is written below ``security_log``, a folder that all nodes share.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        name: str,
        connection: AbstractContextManager[None],
        report: Report,
        security_log: Path,
        recordings: Path | None = None,
    ) -> None:
        self._spec = spec
        self._security_log = security_log
        self._recordings = recordings
        self._name = name
        self._connection = connection
        self._report = report
        self._open = ExitStack()
        self._waiting = Waiting()
        self._placement = RayPlacement(spec.resources)
        self._actors: dict[str, Any] = {}
        self._version: int | None = None
        self._generators = RayGenerators(spec.resources, self._actors, self._rollouts)
        self._group = GeneratorGroup(spec.resources, self._generators)
        self._meter = ProcessMeter("loop", "loop")
        self._clocks = Clocks(lambda line: report("warning", line))
        self._with_clock: dict[str, Any] = {}
        """By name: the rollout actors whose clocks were compared when they settled in."""
        self.replacements = Replacements()
        self._nodes: dict[str, str] = {}
        """By actor: where it stands, or stood when it died."""
        self._mending = asyncio.Lock()
        self._repairs = 0
        self._groups: dict[GroupKey, str] = {}
        """Who plays each group that is under way, or played it when somebody died; an aborted one is not in it."""
        self._learner_node = ""
        """For people: who reads why an attempt ended looks there."""
        self._ranks_node = ""
        """The node of the trainer's ranks, once the learner has said which it is."""
        self._following: dict[str, asyncio.Future[Any]] = {}
        """By the names of the trainer's other ranks; one that is done has died."""

    @property
    def waiting_for(self) -> str | None:
        return self._waiting.name

    async def start(self) -> None:
        with self._waiting.on("ray"):
            self._open.enter_context(self._connection)
        with self._waiting.on("placement"):
            await self._placement.reserve()
        judge = ("judge",) if self._spec.resources.judge is not None else ()
        for name in ("learner", *self._generators.names, *judge, *self._rollouts):
            self._actors[name] = self._made(name)
        if self._spec.resources.has_leader:
            await self._start_ranks()
        for name in self._actors:
            await self._settle_in(name)

    async def _start_ranks(self) -> None:
        """On the learner's node."""
        with self._waiting.on("learner"), _loss_of("learner"):
            self._ranks_node, folder = await self._actors["learner"].lead.remote()
        self._open.callback(shutil.rmtree, folder, ignore_errors=True)
        for number in range(1, self._spec.resources.trainer_ranks):
            name = f"rank-{number}"
            self._actors[name] = self._made(name)
            self._following[name] = asyncio.ensure_future(_awaited(self._actors[name].follow.remote(folder, number)))

    async def read_on(self) -> FilesRead:
        read: FilesRead = await self._learn("read_on")
        return read

    async def stage(self, number: int) -> StageBegun:
        begun: StageBegun = await self._learn("stage", number)
        return begun

    async def supervised(self, number: int, first: int, last: int) -> dict[str, float]:
        metrics: dict[str, float] = await self._learn("supervised", number, first, last)
        return metrics

    async def sync_weights(self, version: int) -> None:
        if self._version != version:
            self._version, self._generators.weights = version, None
        while self._group.behind(version):
            repairs = self._repairs
            try:
                async with self._mending, self._between_episodes():
                    await self._load_weights()
            except RayActorError as death:
                await self._check_learner(death)
                await self._repaired_since(repairs)
        await self._pass_on_reports()

    async def suspend(self) -> int:
        return await self._group.lend()

    async def resume(self) -> None:
        self._group.returned()
        if self._version is not None:
            await self.sync_weights(self._version)
        await self._group.go_on()

    async def _load_weights(self) -> None:
        """From then on generators have ``_version``; one that is made anew while the learner goes on gets the same."""
        assert self._version is not None
        generators = self._generators
        generators.weights = generators.weights or self._actors["learner"].call.remote("weights")
        try:
            with self._waiting.on("generator"):
                await self._group.load(self._version)
        finally:
            if not self._spec.schedule.overlaps:
                generators.weights = None

    @asynccontextmanager
    async def _between_episodes(self) -> AsyncIterator[None]:
        """With ``schedule.weight_exchange = "episode-borders"``: while nothing is played.  Raises RayActorError."""
        schedule = self._spec.schedule
        if not (schedule.overlaps and schedule.weight_exchange == "episode-borders"):
            yield
            return
        playing = [self._actors[name] for name in self._rollouts]
        try:
            with self._waiting.on("rollout-0"):
                await asyncio.gather(*(_awaited(actor.hold.remote()) for actor in playing))
            yield
        finally:
            for actor in playing:
                with contextlib.suppress(RayActorError):  # whoever replaces it begins open
                    await actor.go_on.remote()

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        """Play all requests; the shares of whoever died are dealt out again, as often as it takes."""
        merged = Collected()
        missing = list(requests)
        while missing:
            repairs = self._repairs
            dealt = list(zip(self._rollouts, shares(missing, len(self._rollouts)), strict=True))
            replies = await asyncio.gather(*(self._collect_share(name, share) for name, share in dealt))
            await self._pass_on_reports()
            missing = []
            for (_, share), collected in zip(dealt, replies, strict=True):
                if collected is None:
                    missing += share
                else:
                    merged.merge(collected)
            if missing:
                self._report("warning", f"{len(missing)} episodes are played again")
                if not await self._repaired_since(repairs):
                    raise ActorLost(f"{len(missing)} episodes got no answer although all actors live")
        numbers = {request.id: number for number, request in enumerate(requests)}
        merged.trajectories.sort(key=lambda trajectory: numbers[trajectory.id])
        return merged

    async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
        """In the worker that plays fewest groups; in another one if it dies, or its generator."""
        key = group_key(requests)
        try:
            while True:
                repairs, name = self._repairs, self._least_loaded()
                self._groups[key] = name
                try:
                    return await self._play_group(name, requests, enough, fewest)
                except (RayActorError, GeneratorLost) as death:
                    self._report("warning", f"prompt {key[0]}: {name} or its generator died ({type(death).__name__})")
                if key in self._groups and not await self._repaired_since(repairs):
                    raise ActorLost(f"prompt {key[0]} got no answer although all actors live")
                if key not in self._groups:  # aborted before it died, or while the dead were replaced
                    return Collected(unused_rollouts=len(requests))
        finally:
            self._groups.pop(key, None)

    async def _play_group(self, name: str, requests: Sequence[EpisodeRequest], enough: int, fewest: int) -> Collected:
        reply = self._actors[name].collect_group.remote(requests, self._generators.lines(name), enough, fewest)
        try:
            collected: Collected = await reply
        except RayTaskError as error:  # what the plain class raised, without Ray's frame around it
            raise error.cause from error
        return self._clocks.move(collected, name)

    def _least_loaded(self) -> str:
        load = Counter(self._groups.values())
        return min(self._rollouts, key=lambda name: load[name])

    async def abort_group(self, key: GroupKey) -> None:
        name = self._groups.pop(key, None)
        if name is not None:
            with contextlib.suppress(RayActorError):  # then nothing of it is played any more
                await self._actors[name].abort_group.remote(key)

    async def credit(
        self, groups: Sequence[RolloutGroup], released: Sequence[RolloutGroup], *, step: int
    ) -> dict[str, CreditColumns]:
        columns: dict[str, CreditColumns] = await self._learn("credit", groups, released, step=step)
        return columns

    async def update(self, request: UpdateRequest) -> Updated:
        updated: Updated = await self._learn("update", request)
        return updated

    async def save(self, folder: Path) -> None:
        await self._learn("save", folder)

    async def load(self, folder: Path) -> None:
        await self._learn("load", folder)
        self._generators.weights = None
        self._group.forget_weights()

    async def ask_judge(self, document: Mapping[str, Any], timeout_s: float) -> ChatAnswer:
        with self._waiting.on("judge"), _loss_of("judge"):
            return await asking(self._actors["judge"])(document, timeout_s)

    async def usage(self) -> UsageReading:
        with_servers = [name for name in (*self._generators.names, "judge") if name in self._actors]
        others = [self._answer_of(actor.reading) for name, actor in self._actors.items() if name not in with_servers]
        asked = [self._answer_of(self._actors[name].readings) for name in with_servers]
        comparing = [self._compare_again(name, actor) for name, actor in self._with_clock.items()]
        found, serving, _ = await asyncio.gather(
            asyncio.gather(*others), asyncio.gather(*asked), asyncio.gather(*comparing)
        )
        answers = [answer for answer in serving if answer is not None]
        readings = [self._meter.reading(), *(reading for reading in found if reading is not None)]
        readings += [reading for processes, _ in answers for reading in processes]
        return UsageReading(time.time(), tuple(readings), tuple(server for _, servers in answers for server in servers))

    async def _compare_again(self, name: str, actor: Any) -> None:
        """Clocks part, and are set.  A worker that does not answer keeps the comparison that it has, and the answer of
        one that was replaced meanwhile says nothing of its successor."""
        asked_at = time.time()
        its_time = await self._answer_of(actor.clock)
        if its_time is not None and self._with_clock.get(name) is actor:
            self._clocks.compared(name, self._nodes[name], Comparison(asked_at, its_time, time.time()))

    async def _answer_of(self, method: Any) -> Any:
        """None from an actor that is dead, or busy for too long: whoever needs it next finds out."""
        answering = asyncio.ensure_future(_awaited(method.remote()))
        await asyncio.wait({answering}, timeout=READING_S)
        if not answering.done():
            answering.cancel()
            return None
        with contextlib.suppress(RayActorError):
            return answering.result()
        return None

    async def close(self) -> None:
        """The sandboxes are closed first, so that what they tried last is written down."""
        try:
            await asyncio.gather(*(self._closed(name, CLOSING_S) for name in self._rollouts))
            settled = [name for name in (*self._generators.names, "judge") if name in self._nodes]
            await asyncio.gather(*(self._closed(name, CLOSING_SERVERS_S) for name in settled))
        finally:
            for actor in self._actors.values():
                ray.kill(actor)
            for following in self._following.values():
                following.cancel()
            self._actors.clear()
            self._with_clock.clear()
            self._placement.release()
            self._open.close()

    async def _closed(self, name: str, limit_s: float) -> None:
        """Ask a member that lives to give back what it holds beyond its process, which is killed afterwards."""
        if name not in self._actors:
            return
        try:
            async with asyncio.timeout(limit_s):
                await self._actors[name].close.remote()
        except TimeoutError:
            self._report("warning", f"{name} is killed before it was closed: that took more than {limit_s:.0f} s")
        except RayActorError:  # whoever is dead holds nothing
            return
        except RayTaskError as error:
            self._report("warning", f"{name} could not be closed: {error.cause}")

    @property
    def _rollouts(self) -> list[str]:
        return [f"rollout-{number}" for number in range(self._spec.resources.rollout_workers)]

    def _made(self, name: str) -> Any:
        options: dict[str, Any] = {
            "max_restarts": 0,
            "name": f"{self._name}-{name}-{uuid.uuid4().hex[:8]}",
            **self._placement.options(name, ranks_node=self._ranks_node),
        }
        if name.startswith("rollout"):
            return (
                ray.remote(RolloutActor)
                .options(**options, max_concurrency=CALLS_AT_ONCE)
                .remote(name, self._spec, self._security_log, self._actors.get("judge"))
            )
        if name == "judge":
            again = {"max_restarts": REPLACEMENTS, "max_task_retries": -1, "max_concurrency": CALLS_AT_ONCE}
            return ray.remote(JudgeActor).options(**options | again).remote(self._spec)
        if name.startswith("rank"):
            has_gpus = self._spec.resources.device == "cuda"
            return ray.remote(RankActor).options(**options, max_concurrency=2).remote(name, has_gpus=has_gpus)
        if name in self._generators.names:
            return ray.remote(GeneratorActor).options(**options, max_concurrency=CALLS_AT_ONCE).remote(self._spec, name)
        with_groups: Any = ray.remote  # whose types know no groups
        learner = with_groups(concurrency_groups={"meter": 1})(LearnerActor)
        return learner.options(**options).remote(self._spec, self._recordings)

    async def _settle_in(self, name: str) -> None:
        """Wait until the actor lives; what goes wrong on the way is raised here."""
        with self._waiting.on(name), _loss_of(name, self._learner_node if name == "learner" else ""):
            if name == "learner":
                self._learner_node = await self._actors[name].node.remote()
                await self._unless_a_rank_dies(self._actors[name].start.remote())
            elif name.startswith("rollout") or name == "judge":
                await self._actors[name].start.remote()
            reading: ProcessReading = await self._actors[name].reading.remote()
            node: str = await self._actors[name].node_id.remote()
            if name.startswith("rollout"):
                await self._compare_clock(name, node)
        self._report("info", f"{name} is process {reading.pid}")
        before, self._nodes[name] = self._nodes.get(name, node), node
        if before != node:
            self.replacements.moved[name] += 1
            self._report("warning", f"{name} moved from node {before} to node {node}")

    async def _compare_clock(self, name: str, node: str) -> None:
        asked_at = time.time()
        its_time: float = await self._actors[name].clock.remote()
        self._clocks.compared(name, node, Comparison(asked_at, its_time, time.time()))
        self._with_clock[name] = self._actors[name]

    async def _learn(self, method: str, *arguments: Any, **named: Any) -> Any:
        with self._waiting.on("learner"), _loss_of("learner", self._learner_node):
            return await self._unless_a_rank_dies(self._actors["learner"].call.remote(method, *arguments, **named))

    async def _unless_a_rank_dies(self, reply: Any) -> Any:
        """The learner's reply; it may wait for a rank that is dead, but nobody waits for it then."""
        answering = asyncio.ensure_future(_awaited(reply))
        await asyncio.wait({answering, *self._following.values()}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():  # it knows more than that the process is gone
            await asyncio.wait({answering}, timeout=REASON_S)
        if answering.done():
            return answering.result()
        dead = next(name for name, following in self._following.items() if following.done())
        raise ActorLost(f"{dead} died")

    async def _collect_share(self, name: str, share: list[EpisodeRequest]) -> Collected | None:
        """Return None if the share must be played again."""
        if not share:
            return Collected()
        lines = self._generators.new_lines()
        with self._waiting.on(name):
            try:
                collected: Collected = await self._actors[name].collect.remote(share, lines)
                return self._clocks.move(collected, name)
            except RayActorError:
                self._report("warning", f"{name} died in the middle of a collection")
                await hang_up(lines)
            except GeneratorLost:
                self._report("warning", f"generator died while {name} was playing")
        return None

    async def _pass_on_reports(self) -> None:
        """What happened to servers and decoders.  A judge without a server, or not started again, ends the attempt."""
        if "judge" in self._actors:
            with _loss_of("judge"):
                for level, message in await _awaited(self._actors["judge"].reports.remote()):
                    self._report(level, message)
        if self._spec.resources.generator == "torch" and self._spec.resources.decoders == 1:
            return
        for level, message in await self._generators.reports():
            self._report(level, message)

    async def _repaired_since(self, repairs: int) -> bool:
        """Replace the dead, unless somebody did since there were ``repairs``; whether there were any."""
        async with self._mending:
            if self._repairs > repairs:
                return True
            while (dead := await self._dead()) or (self._repairs > repairs and self._lacks_weights):
                for name in dead:
                    await self._replace(name)
                self._repairs += bool(dead)
                if self._lacks_weights:
                    await self._load_weights_again()
        return self._repairs > repairs

    @property
    def _lacks_weights(self) -> bool:
        return self._version is not None and self._group.lacks_weights

    async def _load_weights_again(self) -> None:
        """If the generator dies meanwhile, it is found dead afterwards.  Raises ActorLost if the weights are gone."""
        try:
            await self._load_weights()
        except RayActorError as death:
            await self._check_learner(death)

    async def _check_learner(self, death: RayActorError) -> None:
        """Whoever asks the generator for weights may learn of the death of the learner, which has them."""
        if not await self._alive("learner"):
            where = _at(self._learner_node)
            raise ActorLost(f"learner died{where}: nobody has the weights of version {self._version}") from death

    async def _dead(self) -> list[str]:
        """Those of whom another can take the place."""
        return [name for name in (*self._generators.names, *self._rollouts) if not await self._alive(name)]

    async def _alive(self, name: str) -> bool:
        while True:
            try:
                await self._actors[name].reading.remote()
                return True
            except ActorUnavailableError:  # neither dead nor reachable: ask again
                await asyncio.sleep(0.1)
            except RayActorError:
                return False

    async def _replace(self, name: str) -> None:
        self.replacements.replaced[name] += 1
        if self.replacements.replaced.total() > REPLACEMENTS:
            raise ActorLost(f"{name} died; {REPLACEMENTS} actors have been replaced already")
        self._actors[name] = self._made(name)
        if name not in self._generators.names:
            self._clocks.forget(name)
            self._with_clock.pop(name, None)
            await self._generators.forget_worker(name)
            await self._settle_in(name)
            return
        number = self._generators.names.index(name)
        self._generators.forget_generator(name)
        self._group.lost(number)
        await self._settle_in(name)
        await self._group.renewed(number)


@contextmanager
def _loss_of(name: str, node: str = "") -> Iterator[None]:
    try:
        yield
    except RayActorError as error:
        raise ActorLost(f"{name} died{_at(node)}: {error}") from error
    except RayTaskError as error:  # what the plain class raised, without Ray's frame around it
        raise error.cause from error


async def _awaited(reference: Any) -> Any:
    return await reference


def _at(node: str) -> str:
    return f" on node {node}" if node else ""
