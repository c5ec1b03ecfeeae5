"""Plays many episodes at once, and gives back what came of them.

    requests -> [at most IN_FLIGHT_PER_SLOT x kv_slots episodes] -> trajectories, in the order of the requests
                       |            |
                   generator      sandboxes

``collect`` plays all of them; ``collect_group`` plays one group until enough of it has come back.  Many of both may
be under way: the bound is the worker's, not the call's.  ``hold`` lets no episode begin until ``go_on``.

An episode takes a sandbox only after its session has a KV slot, and keeps both to its end, so slots
and sandboxes are always taken in one order and nobody waits in a circle.  A plain class: an actor or
an in-process group of workers holds it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.environments.contract import VerifierFailed
from engine.rollout.episode import Arena, run_episode
from engine.rollout.faults import EnvironmentFailed, EnvironmentLost
from engine.rollout.reexecution import ReplayDiverged
from engine.rollout.requests import EpisodeRequest
from engine.rollout.resampling import Barren, barren, marked
from engine.rollout.token_meter import TokenMeter
from engine.spec.selection import Resampling
from engine.spec.trajectory import Trajectory
from sandboxes.interface import SandboxLost

IN_FLIGHT_PER_SLOT = 2
"""Episodes beyond the KV slots wait in the generator, so that a slot given back is taken at once."""

ATTEMPTS = 2
"""How often an episode whose sandbox is lost is played, the first time included."""

ENVIRONMENT_ATTEMPTS = 3
"""How often one is played whose environment's process is lost before any episode in it comes to its end."""
ENVIRONMENT_LOSSES = 24
"""How often one is lost at most, also with processes that had brought others to their end: most are no part of it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnkeptTurn:
    """A turn that the generator had for a rollout without a trajectory: one that was not needed, ended or lost."""

    rollout: str
    began_at: float
    """Unix seconds."""
    seconds: float


@dataclass(slots=True)
class Collected:
    trajectories: list[Trajectory] = field(default_factory=list)
    """They stand in the order of their requests."""
    discarded: Counter[str] = field(default_factory=Counter)
    """Episodes without a trajectory, by reason: ``sandbox-lost``, ``environment-failed``, ``environment-lost``,
    ``verifier-failed``, ``replay-diverged``."""
    resampled: int = 0
    """Rollouts in whose place another was played."""
    unused_rollouts: int = 0
    """Rollouts of a group that were not needed, most of them ended before they were over."""
    unused_tokens: int = 0
    """What they had sampled in turns that had ended."""
    unkept_turns: list[UnkeptTurn] = field(default_factory=list)
    """``collect_group`` alone tells them."""

    def merge(self, other: "Collected") -> None:
        """Add what another worker has collected."""
        self.trajectories += other.trajectories
        self.discarded += other.discarded
        self.resampled += other.resampled
        self.unused_rollouts += other.unused_rollouts
        self.unused_tokens += other.unused_tokens
        self.unkept_turns += other.unkept_turns


GroupKey = tuple[int, int]
"""A group's prompt, and the version under which it was started: it may be ended and started again."""


def group_key(requests: Sequence[EpisodeRequest]) -> GroupKey:
    return requests[0].prompt, requests[0].version


class RolloutWorker:
    """Plays episodes in one arena, whose generators have so many ``kv_slots`` together."""

    def __init__(self, arena: Arena, resampling: Resampling | None, *, kv_slots: int) -> None:
        self._arena = arena
        self._resampling = resampling
        self._room = asyncio.Semaphore(IN_FLIGHT_PER_SLOT * kv_slots)
        self._playing = 0
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()
        self._groups: dict[GroupKey, list[asyncio.Task[Trajectory | None]]] = {}

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        """Play them all.

        A lost sandbox, a failing environment or verifier, or a replay that diverges costs its own episode only, which
        is counted.  What the generator raises ends the collection: the other episodes are cancelled, their
        sandboxes and sessions given back, and it is raised here.  The same holds for cancellation.
        """
        collected = Collected()
        try:
            async with asyncio.TaskGroup() as episodes:
                tasks = [episodes.create_task(self._play(request, self._arena, collected)) for request in requests]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        collected.trajectories = [trajectory for task in tasks if (trajectory := task.result()) is not None]
        return collected

    async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
        """Play one group until ``enough`` of its rollouts have come back, and end the others.

        It ends early where not even ``fewest`` can come back any more, and on ``abort_group``.  A rollout that raised
        an alert is kept beside those that count, for a reviewer to see.  Raises as ``collect`` does.
        """
        collected = Collected()
        meters = [TokenMeter(self._arena.generator) for _ in requests]
        tasks = [
            asyncio.create_task(self._play(request, replace(self._arena, generator=meter), collected))
            for request, meter in zip(requests, meters, strict=True)
        ]
        self._groups[group_key(requests)] = tasks
        try:
            kept = await _first(tasks, enough=enough, fewest=fewest)
        finally:
            del self._groups[group_key(requests)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        unused = [meter for task, meter in zip(tasks, meters, strict=True) if task not in kept and not _is_lost(task)]
        collected.trajectories = [kept[task] for task in tasks if task in kept]
        collected.unused_rollouts, collected.unused_tokens = len(unused), sum(meter.tokens for meter in unused)
        collected.unkept_turns = [
            UnkeptTurn(request.id, *asked)
            for request, task, meter in zip(requests, tasks, meters, strict=True)
            if task not in kept
            for asked in meter.asked
        ]
        return collected

    def abort_group(self, key: GroupKey) -> None:
        """End what is being played of a group; nothing happens where it is not, or is over."""
        for task in self._groups.get(key, ()):
            task.cancel()

    async def hold(self) -> None:
        """From now on no episode begins; return when none is being played."""
        self._open.clear()
        await self._idle.wait()

    def go_on(self) -> None:
        """Episodes begin again."""
        self._open.set()

    async def _play(self, request: EpisodeRequest, arena: Arena, collected: Collected) -> Trajectory | None:
        async with self._room:
            await self._open.wait()
            self._playing += 1
            self._idle.clear()
            try:
                return await self._or_discarded(request, arena, collected)
            finally:
                self._playing -= 1
                if not self._playing:
                    self._idle.set()

    async def _or_discarded(self, request: EpisodeRequest, arena: Arena, collected: Collected) -> Trajectory | None:
        try:
            return await self._replaced_where_barren(request, arena, collected)
        except SandboxLost as loss:
            log.warning("%s discarded: its sandbox was lost %d times: %s", request.id, ATTEMPTS, loss)
            collected.discarded["sandbox-lost"] += 1
        except ReplayDiverged as difference:
            log.warning("%s discarded: its replay diverged: %s", request.id, difference)
            collected.discarded["replay-diverged"] += 1
        except VerifierFailed as failure:
            log.warning("%s discarded: its verifier failed: %s", request.id, failure)
            collected.discarded["verifier-failed"] += 1
        except EnvironmentLost as loss:
            log.warning("%s discarded: its environment was lost again and again: %s", request.id, loss)
            collected.discarded["environment-lost"] += 1
        except EnvironmentFailed:
            log.exception("%s discarded: its environment failed", request.id)
            collected.discarded["environment-failed"] += 1
        return None

    async def _replaced_where_barren(self, request: EpisodeRequest, arena: Arena, collected: Collected) -> Trajectory:
        """The first rollout that teaches something, or the last try.  Raises what that one raises.

        Evaluations are never replaced: that would flatter the policy.
        """
        resampling = self._resampling
        if resampling is None or request.purpose != "train":
            return await self._played_again_when_lost(request, arena)
        reasons: list[Barren] = []
        while len(reasons) < resampling.max_tries:
            try:
                trajectory = await self._played_again_when_lost(request.try_number(len(reasons)), arena)
                # Whatever raised an alert is kept, for the reviewer to see.
                reason = None if trajectory.alerts else barren(trajectory, resampling)
            except SandboxLost:
                reason = "lost"
            if reason is None:
                return marked(trajectory, reasons)
            reasons.append(reason)
            collected.resampled += 1
        return marked(await self._played_again_when_lost(request.try_number(len(reasons)), arena), reasons)

    async def _played_again_when_lost(self, request: EpisodeRequest, arena: Arena) -> Trajectory:
        """A rollout whose environment was lost meanwhile says so: most of those that end with it have no part in it."""
        losses: list[Barren] = []
        fruitless = 0
        while True:
            try:
                return marked(await self._played_again_without_sandbox(request, arena), losses)
            except EnvironmentLost as loss:
                losses.append("environment-lost")
                fruitless += not loss.finished_episodes
                if fruitless == ENVIRONMENT_ATTEMPTS or len(losses) == ENVIRONMENT_LOSSES:
                    raise
                log.warning("%s is played again: %s", request.id, loss)

    async def _played_again_without_sandbox(self, request: EpisodeRequest, arena: Arena) -> Trajectory:
        for _ in range(ATTEMPTS - 1):
            try:
                return await run_episode(request, arena)
            except SandboxLost as loss:
                log.info("%s is played again: %s", request.id, loss)
        return await run_episode(request, arena)


async def _first(
    tasks: Sequence["asyncio.Task[Trajectory | None]"], *, enough: int, fewest: int
) -> dict["asyncio.Task[Trajectory | None]", Trajectory]:
    """The ``enough`` that are over first, and those that raised an alert until then; fewer where too many are lost."""
    kept: dict[asyncio.Task[Trajectory | None], Trajectory] = {}
    pending, good = set(tasks), 0
    while pending and good < enough and good + len(pending) >= fewest:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in (task for task in tasks if task in done and not task.cancelled()):
            trajectory = task.result()
            if trajectory is not None and (trajectory.alerts or good < enough):
                kept[task] = trajectory
                good += not trajectory.alerts
    return kept


def _is_lost(task: "asyncio.Task[Trajectory | None]") -> bool:
    """Whether the episode ended without a trajectory by itself."""
    return not task.cancelled() and task.exception() is None and task.result() is None
