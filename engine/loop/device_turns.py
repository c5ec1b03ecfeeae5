"""Generator and trainer take turns on the devices that they share, while groups are played beside the training.

    rollouts have them ──► a batch is ready ──► the generator is suspended, the step trains
          ▲                                                     │
          └── resumed: no batch is ready for the next step ◄────┘

When they change sides is ``engine.cluster.multiplexing``'s to say, the policy that ``./dev bench scale`` simulates.
The generators that share a device with the trainer's ranks all change; what they had begun waits, or goes on in the
generators that share nothing, where there are such (``resources.generators``).  A rollout's later tokens are sampled
later for it, and never under older weights: docs/staleness.md holds as it stands, for nothing in it counts seconds.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.cluster.multiplexing import Demand, Multiplexer, Multiplexing
from engine.cluster.workers import WorkerGroup
from engine.loop.lane_spans import SpanLog
from engine.spec.resources import Resources
from engine.spec.schedule import Schedule

METRICS = {
    "multiplexing/moves",
    "multiplexing/rollout_seconds",
    "multiplexing/training_seconds",
    "multiplexing/held_seconds",
    "multiplexing/moved_turns",
}
"""What each step reports: since the step before took its batch (docs/algorithms.md)."""


@dataclass(frozen=True, slots=True)
class Groups:
    """What there is to do, counted in groups."""

    ready: int
    """Those that a step has taken, and is training on or about to, among them."""
    running: int
    may_train: bool
    """Whether a step has taken a batch, or could."""


def multiplexing_of(schedule: Schedule, resources: Resources) -> Multiplexing:
    """Counted in generators and groups.  Where some play on, an idle trainer may wait for a batch that is near."""
    total, lent, hold_s = resources.generators, resources.shared_generators, schedule.multiplexing_hold_s
    batch = schedule.prompts_per_step
    if lent == total:
        return Multiplexing(total, lent, batch, hold_s=hold_s, keep_at=1.0, patience_s=0.0)
    return Multiplexing(total, lent, batch, hold_s=hold_s, patience_s=2 * hold_s)


class DeviceTurns:
    """Belongs to one ``GenerationLane``.  In the beginning rollouts have the devices."""

    def __init__(
        self,
        workers: WorkerGroup,
        spans: SpanLog,
        groups: Callable[[], Groups],
        *,
        settings: Multiplexing,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``groups`` says what there is at the moment, in what ``settings.batch`` counts."""
        self._workers = workers
        self._spans = spans
        self._groups = groups
        self._now_s = now_s
        self._since_s = self._counted_s = now_s()
        self._settings = settings
        self._multiplexer = Multiplexer(settings, at_s=self._since_s)
        self._seconds = {"rollouts": 0.0, "training": 0.0}
        self._moves, self._held_s, self._moved_turns = 0, 0.0, 0

    @property
    def owner(self) -> str:
        return "training" if self._multiplexer.trainer_gpus else "rollouts"

    async def for_training(self) -> None:
        """Return when the step that has taken a batch has the devices: at once, or as soon as they may move again."""
        began = self._now_s()
        while self.owner != "training":
            demand = self._demand()
            owner = self.owner
            if self._multiplexer.decide(demand) == "shrink":
                self._moved_turns += await self._workers.suspend()
                self._moved_from(owner)
            else:
                await asyncio.sleep(self._pause_s(demand))
        self._held_s += self._now_s() - began

    async def give_back(self) -> float | None:
        """Let rollouts have the devices if nothing is to be trained on; else return in how many seconds to ask again.

        None: not before something happens.
        """
        if self.owner == "rollouts":
            return None
        demand = self._demand()
        if self._multiplexer.decide(demand) == "expand":
            await self._workers.resume()
            self._moved_from("training")
            return None
        look_s = self._multiplexer.next_look_s(demand)
        return None if look_s is None else max(0.0, look_s - demand.at_s)

    async def for_rollouts(self) -> None:
        """Rollouts have them at once: an evaluation plays, or a pause lets end what is being played."""
        if self.owner == "training":
            self._multiplexer.expand_now(self._now_s())
            await self._workers.resume()
            self._moved_from("training")

    async def change(self, changed: asyncio.Event) -> None:
        """Wait for it, and give back meanwhile what the trainer does not use."""
        while True:
            again_s = await self.give_back()
            try:
                async with asyncio.timeout(again_s):
                    await changed.wait()
                return
            except TimeoutError:
                continue

    def metrics(self) -> dict[str, float]:
        """Since the last call."""
        self._count()
        values = {
            "multiplexing/moves": float(self._moves),
            "multiplexing/rollout_seconds": self._seconds["rollouts"],
            "multiplexing/training_seconds": self._seconds["training"],
            "multiplexing/held_seconds": self._held_s,
            "multiplexing/moved_turns": float(self._moved_turns),
        }
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        self._moves, self._held_s, self._moved_turns = 0, 0.0, 0
        return values

    def _demand(self) -> Demand:
        """A trainer at work asks nothing, so whoever asks is none."""
        groups = self._groups()
        return Demand(self._now_s(), groups.ready, groups.running, training=False, may_train=groups.may_train)

    def _pause_s(self, demand: Demand) -> float:
        look_s = self._multiplexer.next_look_s(demand)
        assert look_s is not None, "a step has taken a batch, so the policy knows when it may have the devices"
        return max(0.0, look_s - demand.at_s)

    def _moved_from(self, owner: str) -> None:
        now = self._now_s()
        self._spans.add("devices", self._label(owner), now - self._since_s)
        self._seconds[owner] += now - self._counted_s
        self._since_s = self._counted_s = now
        self._moves += 1

    def _label(self, owner: str) -> str:
        """Who had them, and how many of all they were where not all are shared."""
        lent, total = self._settings.trainer, self._settings.total
        return owner if owner == "rollouts" or lent == total else f"{owner} ({lent} of {total})"

    def _count(self) -> None:
        now = self._now_s()
        self._seconds[self.owner] += now - self._counted_s
        self._counted_s = now
