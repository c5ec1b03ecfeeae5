"""A run's generators as actors: how they are asked, and under which names rollout workers know them."""

import asyncio
import contextlib
import uuid
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayActorError

from engine.cluster.generator_group import Method, generator_names
from engine.reporting.event_writer import Level
from engine.spec.resources import Resources

Line = tuple[Any, str]
"""A rollout worker's way to a generator: the actor, and the worker's name there."""


class RayGenerators:
    """The ``GeneratorCalls`` of a group of actors; ``actors`` are those of the run, by name, as they come and go."""

    def __init__(self, resources: Resources, actors: dict[str, Any], rollouts: Sequence[str]) -> None:
        self.names = generator_names(resources)
        self.weights: Any = None
        """A reference to what ``load`` takes; it does not travel through here."""
        self._actors = actors
        self._rollouts = rollouts
        self._callers: dict[tuple[str, str], str] = {}
        """By rollout worker and generator: a new name for each pair of present ones."""

    def lines(self, worker: str) -> list[Line]:
        """To the generators in their order, for all groups that the worker plays."""
        return [(self._actors[name], self._callers.setdefault((worker, name), uuid.uuid4().hex)) for name in self.names]

    def new_lines(self) -> list[Line]:
        """For one collection, which hangs up when it is over."""
        return [(self._actors[name], uuid.uuid4().hex) for name in self.names]

    async def load(self, number: int, version: int) -> None:
        await self._actors[self.names[number]].load_weights.remote(self.weights, version)

    async def ask(self, number: int, method: Method) -> int:
        with contextlib.suppress(RayActorError):
            turns: int = await getattr(self._actors[self.names[number]], method).remote()
            return turns
        return 0

    async def welcome(self) -> None:
        await asyncio.gather(*(self._welcome(name) for name in self._rollouts))

    async def _welcome(self, worker: str) -> None:
        with contextlib.suppress(RayActorError):  # whoever replaces it knows of no vacant generator
            await self._actors[worker].welcome.remote()

    async def forget_worker(self, worker: str) -> None:
        """Its sessions are ended, so that others get their slots."""
        for name in self.names:
            if (caller := self._callers.pop((worker, name), None)) is not None:
                await hang_up([(self._actors[name], caller)])

    def forget_generator(self, name: str) -> None:
        """Its successor knows no names."""
        self._callers = {pair: caller for pair, caller in self._callers.items() if pair[1] != name}

    async def reports(self) -> Sequence[tuple[Level, str]]:
        """What happened to the servers of the only one; a dead generator is found out by whoever needs it next."""
        with contextlib.suppress(RayActorError):
            reports: Sequence[tuple[Level, str]] = await self._actors[self.names[0]].reports.remote()
            return reports
        return []


async def hang_up(lines: Sequence[Line]) -> None:
    for generator, caller in lines:
        with contextlib.suppress(RayActorError):  # replaced when it is next needed
            await generator.disconnect.remote(caller)
