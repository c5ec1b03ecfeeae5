"""The workers of a run: the protocol that the loop speaks with them.

    loop ──► learner (weights, optimiser)      one; its death ends the attempt, and so does that of rank-1 .. rank-N,
      │         │                              which share the weights with it where the trainer has several ranks
      │         │ weights
      │         ▼
      ├────► generator, generator-1 .. (KV slots, sampling)   replaced when they die
      │         ▲ tokens
      │         │
      ├────► rollout-0 .. rollout-N (episodes, sandboxes)   replaced when they die
      │         │ questions
      │         ▼
      └────► judge (servers of another model)  where the run has one; replaced when it dies

Two groups of workers do this: ``in_process.py`` in one process and ``ray_workers.py`` with Ray.  A group that
replaces a dead member repeats what it had in hand; seeds make the repetition equal.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from engine.judge_endpoint import ChatAnswer
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import Collected, GroupKey
from engine.spec.rollout_group import RolloutGroup
from engine.spec.usage import UsageReading
from engine.training.columns import CreditColumns, Updated, UpdateRequest
from engine.training.stages import FilesRead, StageBegun


class ActorLost(Exception):
    """A member died and cannot be replaced in this attempt; a restart from the checkpoint may help."""


@dataclass(frozen=True, slots=True)
class Replacements:
    """Members that died and were made anew in this attempt, by their names: how often."""

    replaced: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    """Those of them that stand on another node than before."""


class WorkerGroup(Protocol):
    """All calls may raise ``ActorLost``, and end early when they are cancelled."""

    @property
    def replacements(self) -> Replacements: ...

    @property
    def waiting_for(self) -> str | None:
        """The member that the loop waits for right now, e.g. ``rollout-0``."""
        ...

    async def start(self) -> None: ...

    async def read_on(self) -> FilesRead:
        """Read the files of the supervised stages a little further; the first stage begins when all are read."""
        ...

    async def stage(self, number: int) -> StageBegun:
        """Make what supervised stage ``number``, from 0, learns."""
        ...

    async def supervised(self, number: int, first: int, last: int) -> dict[str, float]:
        """Steps ``first`` .. ``last`` (from 1, both included) of stage ``number``, in order; metrics without prefix.

        ``loss`` is their mean; ``validation_loss`` is there where it is due after the last of them.
        """
        ...

    async def sync_weights(self, version: int) -> None:
        """From now on the generator samples with the learner's present weights, called ``version``.

        What is being played goes on with them, or has ended before, as ``schedule.weight_exchange`` says.
        """
        ...

    async def suspend(self) -> int:
        """Generators that share the trainer's devices sample nothing more until ``resume``, new weights or not.

        Where there are others, what was pending goes on in these, and that many turns are returned; else it waits.
        """
        ...

    async def resume(self) -> None:
        """All generators sample, with the newest weights."""
        ...

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        """Play all of them."""
        ...

    async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
        """``RolloutWorker.collect_group`` in one of the workers.  Many at once, beside all other calls."""
        ...

    async def abort_group(self, key: GroupKey) -> None:
        """End what is being played of a group: its ``collect_group`` returns what it has cost."""
        ...

    async def credit(
        self, groups: Sequence[RolloutGroup], released: Sequence[RolloutGroup], *, step: int
    ) -> dict[str, CreditColumns]:
        """Return what credit says in ``step`` of each rollout, by its id.  The learner keeps what it made of them.

        ``released`` are groups of earlier steps in which a rollout came out of quarantine, each compared within itself.
        """
        ...

    async def update(self, request: UpdateRequest) -> Updated:
        """One step's optimiser updates from what was credited."""
        ...

    async def save(self, folder: Path) -> None:
        """The learner's part of a checkpoint."""
        ...

    async def load(self, folder: Path) -> None: ...

    async def ask_judge(self, document: Mapping[str, Any], timeout_s: float) -> ChatAnswer:
        """A ``ServedJudge``, over the servers of ``resources.judge``; a run without them is never asked."""
        ...

    async def usage(self) -> UsageReading:
        """What the loop's own process, all members and the generator's servers take; silent ones are left out."""
        ...

    async def close(self) -> None:
        """End all members without waiting for what they have in hand.  Closing twice is fine."""
        ...


class Waiting:
    """Remembers who is being waited for; the oldest wait is told."""

    def __init__(self) -> None:
        self._names: list[str] = []

    @property
    def name(self) -> str | None:
        return self._names[0] if self._names else None

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        self._names.append(name)
        try:
            yield
        finally:
            self._names.remove(name)
