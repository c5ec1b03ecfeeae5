"""Which groups are in play, which wait for the trainer, and which the next step trains on.

    plans ──► WAITING ──► RUNNING ──► READY ──► TAKEN ──► TRAINED
                 ▲           │          │ └─► dropped: it teaches nothing, and is reported with the next batch
                 └───────────┴──────────┘
                   given up: too old for every step that is left to it; the prompt is played again, once

A plain data structure without a clock, a task or a lock: ``generation.py`` moves groups on, and the property tests
drive it as they like.  With P prompts a step, a ratio R and r redundant groups, at most S = (R + 1) P + r groups are
running, ready, taken, or trained with weights that nobody has sampled from yet.

*Bound.*  ``advance(u)`` gives up every group that started before version u - R, so what ``take`` finds at version u is
at most R versions old.  *Nobody waits for ever.*  ``take`` trains early on what would be too many for a later step, so
that whoever waits for a group waits for one that is being played.  Both are proved in docs/staleness.md.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from engine.spec.rollout_group import GroupPlan, RolloutGroup
from engine.spec.schedule import Schedule
from engine.spec.trajectory import Trajectory

GroupStatus = Literal["waiting", "running", "ready", "taken"]


class StalenessExceeded(AssertionError):
    """A rollout older than the ratio was about to be trained on: a defect of the engine, never of a recipe."""


class PlannedGroup(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    plan: GroupPlan
    """Its ``version`` is that of its start, once it has one."""
    given_up: bool = False
    """It was given up once: from now on it is waited for."""


class ReadyGroup(PlannedGroup):
    """What came of a group."""

    members: list[Trajectory]
    discarded: dict[str, int] = {}
    """Members without a trajectory, by reason."""

    @property
    def group(self) -> RolloutGroup:
        return RolloutGroup(self.plan, tuple(self.members))


class BufferState(BaseModel):
    """The part of a checkpoint from which no prompt is lost and none is trained on twice."""

    model_config = ConfigDict(extra="forbid")

    waiting: list[PlannedGroup] = []
    """To be played: those that were running among them, from their beginning."""
    ready: list[ReadyGroup] = []
    """To be trained on: those that a step had taken and not yet trained on among them."""
    dropped: list[ReadyGroup] = []
    """To be reported with the next batch."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step trains on, and what taught nothing since the step before."""

    groups: tuple[ReadyGroup, ...] = ()
    dropped: tuple[ReadyGroup, ...] = ()


@dataclass(slots=True)
class GivenUp:
    """What ``advance`` has ended; all of it waits to be played again."""

    running: list[GroupPlan] = field(default_factory=list)
    """Groups whose rollouts are to be aborted."""
    ready: list[ReadyGroup] = field(default_factory=list)
    """Groups whose rollouts were played for nothing."""


class GroupBuffer:
    """``version`` is what the generator samples with; ``schedule`` has the ratio and what is done with the overdue.

    ``most_dropped`` groups between two batches may be replaced because they teach nothing.
    """

    def __init__(self, schedule: Schedule, *, version: int, most_dropped: int, state: BufferState) -> None:
        self._batch_size = schedule.prompts_per_step
        self._ratio = schedule.async_ratio
        self._redundant = schedule.redundant_groups
        self._waits = schedule.overdue == "wait"
        self._slots = schedule.slots
        self._most_dropped = most_dropped
        self.version = version
        self._waiting = deque(state.waiting)
        self._running: dict[int, PlannedGroup] = {}
        self._ready = {entry.plan.prompt: entry for entry in state.ready}
        self._dropped = list(state.dropped)
        self._taken = Batch()
        self._spent = 0

    # ---- occupancy ----

    @property
    def counts(self) -> dict[GroupStatus, int]:
        return {
            "waiting": len(self._waiting),
            "running": len(self._running),
            "ready": len(self._ready),
            "taken": len(self._taken.groups),
        }

    @property
    def held_slots(self) -> int:
        """Trained groups keep theirs until the generator has the weights: what starts before is as old as they."""
        return len(self._running) + len(self._ready) + len(self._taken.groups) + self._spent

    @property
    def started(self) -> int:
        """Groups that run or ran and are not trained on yet."""
        return len(self._running) + len(self._ready) + len(self._taken.groups)

    def is_running(self, prompt: int, version: int) -> bool:
        """Whether the start of ``prompt`` under ``version`` still counts; it does not once it was given up."""
        entry = self._running.get(prompt)
        return entry is not None and entry.plan.version == version

    @property
    def has_batch(self) -> bool:
        """Whether ``take`` would give one."""
        return self._chosen() is not None

    # ---- a group's way ----

    def plan(self, plans: Iterable[GroupPlan]) -> None:
        """They start behind those that wait already."""
        self._waiting.extend(PlannedGroup(plan=plan) for plan in plans)

    def start(self) -> GroupPlan | None:
        """The next group to be played, as of now; None where no slot is free or nobody waits."""
        if not self._waiting or self.held_slots >= self._slots:
            return None
        entry = self._next_waiting()
        if entry is None:
            return None
        self._waiting.remove(entry)
        begun = entry.model_copy(update={"plan": replace(entry.plan, version=self.version)})
        self._running[begun.plan.prompt] = begun
        return begun.plan

    def finish(self, prompt: int, rollouts: Sequence[Trajectory], discarded: Counter[str]) -> ReadyGroup:
        """The group of ``prompt`` has been played."""
        entry = self._running.pop(prompt)
        members = sorted(rollouts, key=lambda rollout: rollout.member)
        ready = ReadyGroup(plan=entry.plan, given_up=entry.given_up, members=members, discarded=dict(discarded))
        self._ready[prompt] = ready
        return ready

    @property
    def ready(self) -> list[ReadyGroup]:
        """The groups that a step may take."""
        return list(self._ready.values())

    def drop(self, prompt: int) -> bool:
        """Give the slot of a ready group, which teaches nothing, to another; False where that was done often enough."""
        if len(self._dropped) >= self._most_dropped:
            return False
        self._dropped.append(self._ready.pop(prompt))
        return True

    # ---- a step's way ----

    def take(self) -> Batch | None:
        """The batch of the next step; None where it has to wait.  Call ``trained`` before the next one is taken."""
        chosen = self._chosen()
        if chosen is None:
            return None
        for entry in chosen:
            del self._ready[entry.plan.prompt]
        self._taken, self._dropped = Batch(tuple(chosen), tuple(self._dropped)), []
        return self._taken

    def trained(self) -> None:
        """The update is made: from now on no checkpoint holds the batch."""
        self._spent += len(self._taken.groups)
        self._taken = Batch()

    def advance(self, version: int) -> GivenUp:
        """The generator has the weights of ``version``: slots are free again, and who would be too old is given up."""
        self.version, self._spent = version, 0
        too_old = [entry for entry in self._in_play() if self._age(entry) > self._ratio]
        given_up = GivenUp()
        for entry in too_old:
            ready = self._ready.pop(entry.plan.prompt, None)
            if ready is not None:
                given_up.ready.append(ready)
            else:
                del self._running[entry.plan.prompt]
                given_up.running.append(entry.plan)
        self._waiting.extendleft(PlannedGroup(plan=entry.plan, given_up=True) for entry in reversed(too_old))
        return given_up

    def state(self) -> BufferState:
        """What a checkpoint of this moment holds."""
        again = [PlannedGroup(plan=entry.plan, given_up=entry.given_up) for entry in self._running.values()]
        return BufferState(
            waiting=[*sorted(again, key=_seniority), *self._waiting],
            ready=[*self._taken.groups, *self._ready.values()],
            dropped=[*self._taken.dropped, *self._dropped],
        )

    # ---- who is next ----

    def _next_waiting(self) -> PlannedGroup | None:
        """The longest waiting; of those that will have to be waited for never more than all steps can train on."""
        owed = sum(entry.given_up for entry in self._in_play()) + len(self._taken.groups) + self._spent
        full = owed >= (self._ratio + 1) * self._batch_size
        return next((entry for entry in self._waiting if not (entry.given_up and full)), None)

    def _chosen(self) -> list[ReadyGroup] | None:
        """The oldest ready groups, first those that no later step would have room for; None where some are missing."""
        ready = sorted(self._ready.values(), key=_seniority)
        if len(ready) < self._batch_size:
            return None
        in_play = self._in_play()
        urgent = self._without_room([entry for entry in in_play if entry.given_up])
        first = [entry.plan.prompt for entry in ready if entry.given_up][:urgent]
        others = [entry.plan.prompt for entry in ready if entry.plan.prompt not in first]
        chosen = {*first, *others[: self._batch_size - len(first)]}
        rest = [entry for entry in in_play if entry.plan.prompt not in chosen]
        return [entry for entry in ready if entry.plan.prompt in chosen] if self._leaves_room(rest) else None

    def _leaves_room(self, rest: Sequence[PlannedGroup]) -> bool:
        """Whether the steps to come can train in time on everybody who is waited for."""
        if self._waits and self._without_room(rest) > self._redundant:
            return False
        return self._without_room([entry for entry in rest if entry.given_up]) == 0

    def _without_room(self, entries: Sequence[PlannedGroup]) -> int:
        """How many of ``entries`` would become too old if the next step took none of them, and later ones P each."""
        last_steps = Counter(max(0, self._ratio - self._age(entry)) for entry in entries)
        without, due = 0, 0
        for steps in range(self._ratio + 1):
            due += last_steps[steps]
            without = max(without, due - steps * self._batch_size)
        return without

    def _in_play(self) -> list[PlannedGroup]:
        return sorted([*self._running.values(), *self._ready.values()], key=_seniority)

    def _age(self, entry: PlannedGroup) -> int:
        return self.version - entry.plan.version


def _seniority(entry: PlannedGroup) -> tuple[int, int]:
    return entry.plan.version, entry.plan.prompt


def check_staleness(batch: Batch, *, version: int, ratio: int) -> None:
    """Raises StalenessExceeded if the policy of ``version`` is to be updated from a rollout older than ``ratio``."""
    for entry in batch.groups:
        for rollout in entry.members:
            if version - rollout.sampled_at_version > ratio:
                raise StalenessExceeded(
                    f"{rollout.id}: its first token is of version {rollout.sampled_at_version}, and version {version} "
                    f"is to learn from it; schedule.async_ratio = {ratio} allows {version - ratio} and later"
                )
