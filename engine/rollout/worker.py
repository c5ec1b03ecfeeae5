"""Plays many episodes at once, and gives back what came of them.

    requests -> [at most IN_FLIGHT_PER_SLOT x kv_slots episodes] -> trajectories, in the order of the requests
                       |            |
                   generator      sandboxes

An episode takes a sandbox only after its session has a KV slot, and keeps both to its end, so slots
and sandboxes are always taken in one order and nobody waits in a circle.  A plain class: an actor or
an in-process group of workers holds it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.rollout.episode import Arena, run_episode
from engine.rollout.faults import EnvironmentFailed
from engine.rollout.reexecution import ReplayDiverged
from engine.rollout.requests import EpisodeRequest
from engine.rollout.resampling import Barren, barren, marked
from engine.spec.selection import Resampling
from engine.spec.trajectory import Trajectory
from sandboxes.interface import SandboxLost

IN_FLIGHT_PER_SLOT = 2
"""Episodes beyond the KV slots wait in the generator, so that a slot given back is taken at once."""

ATTEMPTS = 2
"""How often an episode whose sandbox is lost is played, the first time included."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Collected:
    trajectories: list[Trajectory] = field(default_factory=list)
    """They stand in the order of their requests."""
    discarded: Counter[str] = field(default_factory=Counter)
    """Episodes without a trajectory, by reason: ``sandbox-lost``, ``environment-failed``, ``replay-diverged``."""
    resampled: int = 0
    """Rollouts in whose place another was played."""

    def merge(self, other: "Collected") -> None:
        """Add what another worker has collected."""
        self.trajectories += other.trajectories
        self.discarded += other.discarded
        self.resampled += other.resampled


class RolloutWorker:
    """Plays episodes in one arena, whose generator has so many ``kv_slots``."""

    def __init__(self, arena: Arena, resampling: Resampling | None, *, kv_slots: int) -> None:
        self._arena = arena
        self._resampling = resampling
        self._in_flight = IN_FLIGHT_PER_SLOT * kv_slots

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        """Play them all.

        A lost sandbox, a failing environment or a replay that diverges costs its own episode only, which is
        counted.  What the generator raises ends the collection: the other episodes are cancelled, their
        sandboxes and sessions given back, and it is raised here.  The same holds for cancellation.
        """
        collected, room = Collected(), asyncio.Semaphore(self._in_flight)
        try:
            async with asyncio.TaskGroup() as episodes:
                tasks = [episodes.create_task(self._play(request, room, collected)) for request in requests]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        collected.trajectories = [trajectory for task in tasks if (trajectory := task.result()) is not None]
        return collected

    async def _play(self, request: EpisodeRequest, room: asyncio.Semaphore, collected: Collected) -> Trajectory | None:
        async with room:
            try:
                return await self._replaced_where_barren(request, collected)
            except SandboxLost as loss:
                log.warning("%s discarded: its sandbox was lost %d times: %s", request.id, ATTEMPTS, loss)
                collected.discarded["sandbox-lost"] += 1
            except ReplayDiverged as difference:
                log.warning("%s discarded: its replay diverged: %s", request.id, difference)
                collected.discarded["replay-diverged"] += 1
            except EnvironmentFailed:
                log.exception("%s discarded: its environment failed", request.id)
                collected.discarded["environment-failed"] += 1
        return None

    async def _replaced_where_barren(self, request: EpisodeRequest, collected: Collected) -> Trajectory:
        """The first rollout that teaches something, or the last try.  Raises what that one raises.

        Evaluations are never replaced: that would flatter the policy.
        """
        resampling = self._resampling
        if resampling is None or request.purpose != "train":
            return await self._played_again_when_lost(request)
        reasons: list[Barren] = []
        while len(reasons) < resampling.max_tries:
            try:
                trajectory = await self._played_again_when_lost(request.try_number(len(reasons)))
                # Whatever raised an alert is kept, for the reviewer to see.
                reason = None if trajectory.alerts else barren(trajectory, resampling)
            except SandboxLost:
                reason = "lost"
            if reason is None:
                return marked(trajectory, reasons)
            reasons.append(reason)
            collected.resampled += 1
        return marked(await self._played_again_when_lost(request.try_number(len(reasons))), reasons)

    async def _played_again_when_lost(self, request: EpisodeRequest) -> Trajectory:
        for _ in range(ATTEMPTS - 1):
            try:
                return await run_episode(request, self._arena)
            except SandboxLost as loss:
                log.info("%s is played again: %s", request.id, loss)
        return await run_episode(request, self._arena)
