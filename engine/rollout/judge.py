"""Who says of each turn of a trajectory whether it helped, and how that can fail.

A judge answers for whole trajectories.  What a failure costs is decided by who asked: here it only
gets a name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.environments.contract import JudgeVerdict, Oracle
from engine.spec.trajectory import Trajectory


class JudgeFailed(Exception):
    """No verdict on this trajectory; the class says why."""

    def __init__(self, message: str = "", *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """The server asks not to be asked again before."""


class JudgeTimeout(JudgeFailed):
    """No whole answer within the time-out."""


class JudgeUnavailable(JudgeFailed):
    """The judge was not reachable, the connection was lost, or the server says that it cannot answer now (5xx, 408,
    429)."""


class JudgeUnparseable(JudgeFailed):
    """It answered, and not with exactly one verdict for each turn."""


class JudgeRefused(JudgeFailed):
    """The server does not take the question (4xx, or a redirection): asking again would not help."""


@dataclass(slots=True)
class JudgeCounts:
    """What judging has cost since the counts were last taken."""

    calls: int = 0
    """Requests that were sent, repeated ones included."""
    cached: int = 0
    """Trajectories that were answered without a request of their own."""
    failed: int = 0
    """Trajectories without a verdict after the last try."""


class Judge(Protocol):
    counts: JudgeCounts

    async def verdicts(self, trajectory: Trajectory) -> Sequence[JudgeVerdict]:
        """One for each turn.  Raises JudgeFailed.  May be asked about many trajectories at once."""
        ...

    async def close(self) -> None:
        """Closing twice is fine."""
        ...


class EnvironmentJudge:
    """The environment's own rules, which know the truth: no model, no cost, and no failure of its own."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.counts = JudgeCounts()

    async def verdicts(self, trajectory: Trajectory) -> Sequence[JudgeVerdict]:
        calls = [turn.tool_calls for turn in trajectory.turns]
        return self._oracle.verdicts(trajectory.task, calls, trajectory.answer)

    async def close(self) -> None:
        pass
