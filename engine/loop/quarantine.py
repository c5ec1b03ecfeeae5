"""Which trajectories are out of training because of an alert, and which come back.

    alert ──► out: not compared, not credited, not trained on; its whole group is held
    found benign ──► credited in its group and trained on in the next step, if that is soon enough
    found malicious, or too late ──► never

``Quarantine`` is told from other threads what happens; ``QuarantineState`` is what the loop has made
of it, part of every checkpoint.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from engine.rollout.security_log import AlertEntry
from engine.spec import files_of_0_2
from engine.spec.rollout_group import GroupPlan, RolloutGroup
from engine.spec.security import QUARANTINED, ReviewDecision, ReviewVerdict
from engine.spec.trajectory import Trajectory

ALERTS = "alerts.txt"
"""The name of the file in a run's folder."""
WHOLE = "."
"""The end of its lines, by which one is known that a kill has cut short."""
MOST_HELD = 64
"""Groups that wait for a review decision; then the oldest is given up."""


class HeldGroup(BaseModel):
    """The rollouts of one prompt, some of which are out: the others are what they are compared with."""

    model_config = ConfigDict(extra="forbid")

    plan: GroupPlan
    members: list[Trajectory]
    """There are none any more once it is too late for them."""
    out: list[str]
    """Ids of those that wait for a review decision."""

    @model_validator(mode="before")
    @classmethod
    def _of_0_2(cls, document: Any) -> Any:
        return files_of_0_2.held_group(document)

    @property
    def step(self) -> int:
        """The step for which it was planned."""
        return self.plan.step

    @property
    def group(self) -> RolloutGroup:
        return RolloutGroup(self.plan, tuple(self.members))


class QuarantineState(BaseModel):
    model_config = ConfigDict(extra="forbid")

    decided_through: int = 0
    """The number of the last review decision that is in ``review_decisions``."""
    review_decisions: dict[str, ReviewVerdict] = {}
    """The last one about each trajectory, by its id."""
    known: dict[str, list[str]] = {}
    """Trajectory -> ids of its alerts: one that is not among them voids what was decided before it."""
    held: list[HeldGroup] = []

    @model_validator(mode="before")
    @classmethod
    def _of_0_2(cls, document: Any) -> Any:
        return files_of_0_2.quarantine_state(document)


@dataclass(slots=True)
class Release:
    """What the review decisions that are known let go of."""

    groups: list[HeldGroup] = field(default_factory=list)
    """They have those in ``out`` that are to be trained on now, and as members only those that nobody doubts."""
    updated: list[Trajectory] = field(default_factory=list)
    """Those in ``out`` as they were in this step's update."""
    late: dict[str, int] = field(default_factory=dict)
    """Benign, but too many updates ago -> the step that they were sampled for."""
    held: list[HeldGroup] = field(default_factory=list)
    """What is held from now on."""
    discarded: dict[str, int] = field(default_factory=dict)
    """Those that wait for a review decision for which it is too late from now on -> the step that they were sampled
    for."""


class Quarantine:
    """Told by the threads that read alerts and review decisions; asked by the loop."""

    def __init__(self, file: Path | None = None) -> None:
        """``file`` keeps alerts over attempts: a trajectory in a checkpoint's buffer may get one after it was saved."""
        self._file = file
        self._of_earlier_attempts = _alerts_in(file)
        self._mutex = threading.Lock()
        self._alerts: dict[str, list[str]] = {}
        self._inbox: list[AlertEntry | ReviewDecision] = []

    def alerted(self, alert: AlertEntry) -> None:
        if alert.quarantined and alert.origin is not None:
            with self._mutex:
                if self._file is not None:
                    with self._file.open("a") as file:
                        file.write(f"\n{alert.origin.trajectory} {alert.id} {WHOLE}")
                self._alerts.setdefault(alert.origin.trajectory, []).append(alert.id)
                self._inbox.append(alert)

    def decided(self, review_decisions: Sequence[ReviewDecision]) -> None:
        with self._mutex:
            self._inbox += review_decisions

    def absorbed(self, state: QuarantineState) -> QuarantineState:
        """``state`` with what came since, in the order in which it came."""
        with self._mutex:
            inbox, self._inbox = self._inbox, []
        absorbed = state.model_copy(deep=True) if inbox else state
        for message in inbox:
            if isinstance(message, ReviewDecision):
                if message.number > absorbed.decided_through:
                    absorbed.review_decisions[message.trajectory] = message.verdict
                    absorbed.decided_through = message.number
            elif message.origin is not None and message.id not in absorbed.known.setdefault(
                message.origin.trajectory, []
            ):
                absorbed.known[message.origin.trajectory].append(message.id)
                absorbed.review_decisions.pop(message.origin.trajectory, None)
        return absorbed

    def marked_before(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Rollouts that an earlier attempt has played, with the alerts that it heard of."""
        return [
            trajectory.model_copy(update={"alerts": sorted({*trajectory.alerts, *alerts})})
            if (alerts := self._of_earlier_attempts.get(trajectory.id))
            else trajectory
            for trajectory in trajectories
        ]

    def marked(self, trajectories: Sequence[Trajectory], state: QuarantineState) -> list[Trajectory]:
        """The same, those that are out with reason and alerts."""
        return [self._marked(trajectory, state) for trajectory in trajectories]

    def marked_groups(self, groups: Sequence[RolloutGroup], state: QuarantineState) -> list[RolloutGroup]:
        return [group.with_rollouts(self.marked(group.rollouts, state)) for group in groups]

    def _marked(self, trajectory: Trajectory, state: QuarantineState) -> Trajectory:
        with self._mutex:
            alerts = sorted({*trajectory.alerts, *self._alerts.get(trajectory.id, ())})
        if not alerts:
            return trajectory
        if state.review_decisions.get(trajectory.id) != "benign":
            return trajectory.model_copy(update={"alerts": alerts, "masked_because": QUARANTINED})
        return trajectory.model_copy(
            update={"alerts": alerts, "masked_because": None if is_out(trajectory) else trajectory.masked_because}
        )


def _alerts_in(file: Path | None) -> dict[str, list[str]]:
    """By trajectory.  An alert whose line was cut short was not passed on either, and comes again."""
    alerts: dict[str, list[str]] = {}
    for line in file.read_text().splitlines() if file is not None and file.exists() else ():
        match line.split():
            case [trajectory, alert, end] if end == WHOLE:
                alerts.setdefault(trajectory, []).append(alert)
    return alerts


def is_out(trajectory: Trajectory) -> bool:
    return trajectory.masked_because == QUARANTINED


def _is_doubted(member: Trajectory, state: QuarantineState) -> bool:
    """Whether it is out, also by an alert that came after its group was held, and was not found benign."""
    return (is_out(member) or member.id in state.known) and state.review_decisions.get(member.id) != "benign"


def without_quarantined(group: RolloutGroup) -> RolloutGroup:
    return group.with_rollouts(rollout for rollout in group.rollouts if not is_out(rollout))


def hold(release: Release, groups: Sequence[RolloutGroup]) -> None:
    """Hold besides those of ``groups`` in which a rollout is out.  Beyond ``MOST_HELD`` the oldest are given up."""
    held = list(release.held)
    for group in groups:
        if out := [rollout.id for rollout in group.rollouts if is_out(rollout)]:
            held.append(HeldGroup(plan=group.plan, members=list(group.rollouts), out=out))
    release.held = held[-MOST_HELD:]
    for given_up in held[:-MOST_HELD]:
        if given_up.members:
            release.discarded |= dict.fromkeys(given_up.out, given_up.step)


def released(state: QuarantineState, step: int, *, within: int) -> Release:
    """Return what is to be done with the held groups at ``step``: more than ``within`` updates ago is too late."""
    release = Release()
    for group in state.held:
        benign = [rollout_id for rollout_id in group.out if state.review_decisions.get(rollout_id) == "benign"]
        pending = [rollout_id for rollout_id in group.out if rollout_id not in state.review_decisions]
        if step - group.step > within:
            release.late |= dict.fromkeys(benign, group.step)
        elif benign:
            compared = [member for member in group.members if not _is_doubted(member, state)]
            release.groups.append(group.model_copy(update={"out": benign, "members": compared}))
        if pending:
            members = group.members if step - group.step < within else []
            if group.members and not members:
                release.discarded |= dict.fromkeys(pending, group.step)
            release.held.append(group.model_copy(update={"out": pending, "members": members}))
    return release
