"""Where a step's groups come from when it plays them itself: generation and training take turns.

The other source of groups is ``generation.py``, where they overlap.
"""

import time
from typing import Protocol

from engine.cluster.workers import WorkerGroup
from engine.loop.group_filters import enough_informative
from engine.loop.phases import Phases
from engine.loop.planner import Planner, Played
from engine.loop.state import RunState
from engine.spec.recipe import Recipe


class GroupSource(Protocol):
    """What a step asks for its groups."""

    async def exchanged(self, version: int) -> None:
        """The generator samples with the weights of ``version`` from now on."""
        ...

    async def next(self, step: int) -> Played:
        """The groups of ``step``; the phase ``collect`` lasts so long."""
        ...

    async def release_devices(self) -> None:
        """The trainer needs none for a while: an evaluation is about to play, or the run to pause."""
        ...

    async def reclaim_devices(self) -> None:
        """The pause is over: a step that has taken its groups trains on them."""
        ...

    def trained(self, played: Played) -> None:
        """The step is done, whatever was learned in it."""
        ...

    def record(self) -> None:
        """Bring the run's state up to date before it is saved."""
        ...

    async def close(self) -> None:
        """End what is being played.  Twice is fine."""
        ...


class Rounds:
    """Plays a step's groups all together; further rounds follow while dynamic sampling wants more and may have them."""

    def __init__(
        self, planner: Planner, state: RunState, phases: Phases, workers: WorkerGroup, *, recipe: Recipe
    ) -> None:
        self._planner = planner
        self._state = state
        self._phases = phases
        self._workers = workers
        self._recipe = recipe

    async def exchanged(self, version: int) -> None:
        """Nothing is under way."""

    async def next(self, step: int) -> Played:
        began, sampling = time.monotonic(), self._recipe.selection.dynamic_sampling
        played = Played(self._state.tasks_taken, prompts=self._state.prompts.get("train", 0))
        for _ in range(1 if sampling is None else sampling.max_rounds):
            plans = self._planner.plans(step - 1, played, self._state.experts)
            played.add(plans, await self._workers.collect(self._planner.requests(plans)))
            self._phases.progress.progressed()
            if enough_informative(self._recipe, played.groups, batch=self._planner.prompts_per_step):
                break
        played.seconds = time.monotonic() - began
        return played

    async def release_devices(self) -> None:
        """Nothing is under way."""

    async def reclaim_devices(self) -> None:
        """Nothing is under way."""

    def trained(self, played: Played) -> None:
        self._state.tasks_taken = played.tasks_taken
        self._state.prompts["train"] = played.prompts

    def record(self) -> None:
        """The state is that of the last step."""

    async def close(self) -> None:
        """Nothing is under way."""
