"""The clocks of a run's rollout workers, compared with the loop's: without Ray, and without a clock of its own.

    loop:     asked_at ────────────────────► answered_at
    worker:                 its_time             it is ahead by its_time - the middle, give or take half of the way

What a worker says of time is moved to the loop's clock before anybody else reads it, so that a span stands where it was
beside those of others.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from engine.rollout.worker import Collected, UnkeptTurn
from engine.spec.trajectory import LATEST, ToolCall, Trajectory, Turn

NOTICED_S = 0.5
"""A clock that differs by more is reported."""
DRIFT = 1e-4
"""Seconds by which two clocks may part in a second; an old comparison is worth less by that."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One question, and its answer.  All in Unix seconds."""

    asked_at: float
    its_time: float
    answered_at: float

    @property
    def ahead_s(self) -> float:
        return self.its_time - (self.asked_at + self.answered_at) / 2

    def wrong_by_s(self, at: float) -> float:
        """How far ``ahead_s`` may be from the truth at a time."""
        return (self.answered_at - self.asked_at) / 2 + DRIFT * max(0.0, at - self.answered_at)

    def outlives(self, newer: "Comparison") -> bool:
        """Whether it still says more than a newer one, and the clock was not set in between."""
        at = newer.answered_at
        room = self.wrong_by_s(at) + newer.wrong_by_s(at)
        return abs(self.ahead_s - newer.ahead_s) <= room and self.wrong_by_s(at) < newer.wrong_by_s(at)


class Clocks:
    """``report`` is given a line for each worker whose clock differs, and again where it was set."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._known: dict[str, Comparison] = {}
        self._reported: dict[str, float] = {}
        """By how much the clocks were ahead of which a line was written."""

    def compared(self, worker: str, node: str, comparison: Comparison) -> None:
        """Keep a comparison, unless the loop's own clock was set back during it, or the one that is known says more.

        Before a worker takes another's place, ``forget`` the predecessor: it may stand elsewhere.
        """
        if comparison.answered_at < comparison.asked_at:
            return
        known = self._known.get(worker)
        if known is not None and known.outlives(comparison):
            return
        self._known[worker] = comparison
        ahead_s = self.ahead_s(worker)
        if abs(ahead_s - self._reported.get(worker, 0.0)) > NOTICED_S:
            self._reported[worker] = ahead_s
            self._report(f"the clock of {worker} on node {node} is {_difference(ahead_s)}")

    def forget(self, worker: str) -> None:
        self._known.pop(worker, None)
        self._reported.pop(worker, None)

    def ahead_s(self, worker: str) -> float:
        """0 where the comparison cannot tell the two clocks apart."""
        known = self._known.get(worker)
        if known is None or abs(known.ahead_s) <= known.wrong_by_s(known.answered_at):
            return 0.0
        return known.ahead_s

    def move(self, collected: Collected, worker: str) -> Collected:
        """What ``worker`` has collected, whose times are by the loop's clock from now on."""
        ahead_s = self.ahead_s(worker)
        collected.trajectories = self.by_ours(worker, collected.trajectories)
        collected.unkept_turns = [
            replace(turn, began_at=began_at)
            for turn in collected.unkept_turns
            if (began_at := _earlier(turn, ahead_s)) is not None
        ]
        return collected

    def by_ours(self, worker: str, trajectories: Iterable[Trajectory]) -> list[Trajectory]:
        """What ``worker`` has played, by the loop's clock."""
        ahead_s = self.ahead_s(worker)
        if not ahead_s:
            return [*trajectories]
        return [it.with_turns([_moved(turn, ahead_s) for turn in it.turns]) for it in trajectories]


def _difference(ahead_s: float) -> str:
    if abs(ahead_s) <= NOTICED_S:
        return f"{abs(ahead_s):.1f} s from the loop's again"
    way = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"{abs(ahead_s):.1f} s {way} the loop's: the times of its turns are moved by as much; have the clocks of all"
        " nodes set by one source (NTP)"
    )


def _moved(turn: Turn, ahead_s: float) -> Turn:
    calls = [call.model_copy(update={"began_at": _earlier(call, ahead_s)}) for call in turn.tool_calls]
    began_at = _earlier(turn, ahead_s)
    seconds = None if began_at is None else turn.seconds
    return turn.model_copy(update={"began_at": began_at, "seconds": seconds, "tool_calls": calls})


def _earlier(timed: Turn | ToolCall | UnkeptTurn, by_s: float) -> float | None:
    """None where a turn may not have such a time: its clock was set between the turn and the comparison."""
    if timed.began_at is None or not 0 <= timed.began_at - by_s < LATEST:
        return None
    return timed.began_at - by_s
