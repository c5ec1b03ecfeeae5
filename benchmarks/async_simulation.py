"""How idle two GPUs would be, one that samples and one that trains, with the tool times that a run has met.

An event loop over a simulated clock that drives the engine's own ``GroupBuffer``: a group starts when the buffer has a
slot; each turn of a rollout keeps the first GPU busy for ``turn_s`` and then waits for its tool as long as it did in
the trace; a step begins when the buffer gives a batch, keeps the second GPU busy for ``update_s``, and hands its
weights over in no time.

What it leaves out, so that its shares are those of the schedule alone: turns that slow each other down (a GPU is busy
while it samples at least one), the time of a weight exchange, rewards, and tool times that change because the policy
does.  A group that is given up and played again meets the same tool times as before.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.loop.buffer import BufferState, GroupBuffer
from engine.spec.rollout_group import GroupPlan
from engine.spec.schedule import Schedule

Rollout = Sequence[float]
"""Seconds that the tools of its turns took, 0 for a turn without a call."""
Interval = tuple[float, float]


@dataclass(frozen=True)
class Simulated:
    seconds: float
    """From the first start to the end of the last update."""
    sampling_idle: float
    """Share of the time in which the first GPU sampled nothing."""
    training_idle: float

    @property
    def idle(self) -> float:
        """The idle share of both GPUs together."""
        return (self.sampling_idle + self.training_idle) / 2


@dataclass
class _Clock:
    """What happens when, and what the first GPU did."""

    now: float = 0.0
    due: list[tuple[float, int, int]] = field(default_factory=list)
    """When a group will have been played, its prompt, and the version under which it started."""
    sampled: list[Interval] = field(default_factory=list)


def simulate(groups: Sequence[Sequence[Rollout]], *, schedule: Schedule, turn_s: float, update_s: float) -> Simulated:
    """``groups`` are the prompts of a trace in their order; the steps train on all of them."""
    steps = len(groups) // schedule.prompts_per_step
    buffer = GroupBuffer(schedule, version=0, most_dropped=0, state=BufferState())
    planned = range(steps * schedule.prompts_per_step)
    buffer.plan(GroupPlan(prompt=at, version=0, number=at, tasks_before=at, task=at) for at in planned)
    clock = _Clock()
    for step in range(1, steps + 1):
        _start(buffer, groups, clock, turn_s)
        _wait_for_batch(buffer, groups, clock, turn_s)
        _train(buffer, groups, clock, turn_s, until=clock.now + update_s)
        buffer.trained()
        buffer.advance(step)
    busy_s = union_seconds(clock.sampled, until=clock.now)
    return Simulated(clock.now, 1 - busy_s / clock.now, 1 - steps * update_s / clock.now)


def _wait_for_batch(buffer: GroupBuffer, groups: Sequence[Sequence[Rollout]], clock: _Clock, turn_s: float) -> None:
    while buffer.take() is None:
        _finish_next(buffer, clock)
        _start(buffer, groups, clock, turn_s)


def _train(
    buffer: GroupBuffer, groups: Sequence[Sequence[Rollout]], clock: _Clock, turn_s: float, *, until: float
) -> None:
    """Groups come back, and others start, while the update is made."""
    while clock.due and clock.due[0][0] <= until:
        _finish_next(buffer, clock)
        _start(buffer, groups, clock, turn_s)
    clock.now = until


def _finish_next(buffer: GroupBuffer, clock: _Clock) -> None:
    """A start that was given up meanwhile comes back to nobody."""
    at, prompt, version = heapq.heappop(clock.due)
    clock.now = max(clock.now, at)
    if buffer.is_running(prompt, version):
        buffer.finish(prompt, [], Counter())


def _start(buffer: GroupBuffer, groups: Sequence[Sequence[Rollout]], clock: _Clock, turn_s: float) -> None:
    while (plan := buffer.start()) is not None:
        ends = [_play(rollout, clock, turn_s) for rollout in groups[plan.prompt]]
        heapq.heappush(clock.due, (max(ends, default=clock.now), plan.prompt, plan.version))


def _play(rollout: Rollout, clock: _Clock, turn_s: float) -> float:
    """When it ends, if it starts now."""
    at = clock.now
    for tool_s in rollout:
        clock.sampled.append((at, at + turn_s))
        at += turn_s + tool_s
    return at


def union_seconds(intervals: Sequence[Interval], *, until: float) -> float:
    """How long at least one of them lasts, up to ``until``."""
    total, reached = 0.0, 0.0
    for begin, end in sorted(intervals):
        total += max(0.0, min(end, until) - max(begin, reached))
        reached = max(reached, min(end, until))
    return total
