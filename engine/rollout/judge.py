"""Who says of each turn of a trajectory whether it helped, and how that can fail.

A judge answers for whole trajectories.  What a failure (``JudgeFailed``) costs is decided by who asked.
"""

from collections.abc import Sequence
from typing import Protocol

from engine.environments.contract import JudgeVerdict, Oracle
from engine.judge_endpoint import JudgeCounts
from engine.rollout.context_tools import context_tools
from engine.spec.context import Context
from engine.spec.trajectory import Trajectory


class Judge(Protocol):
    counts: JudgeCounts

    async def verdicts(self, trajectory: Trajectory) -> Sequence[JudgeVerdict]:
        """One for each turn.  Raises JudgeFailed.  May be asked about many trajectories at once."""
        ...

    async def close(self) -> None:
        """Closing twice is fine."""
        ...


class EnvironmentJudge:
    """The environment's own rules, which know the truth: no model, no cost, and no failure of its own.

    They know the environment's tools alone: calls of those that ``context`` adds are kept from them.
    """

    def __init__(self, oracle: Oracle, context: Context | None) -> None:
        self._oracle = oracle
        self._added = frozenset(tool.name for tool in context_tools(context))
        self.counts = JudgeCounts()

    async def verdicts(self, trajectory: Trajectory) -> Sequence[JudgeVerdict]:
        calls = [[call for call in turn.tool_calls if call.name not in self._added] for turn in trajectory.turns]
        return self._oracle.verdicts(trajectory.task, calls, trajectory.answer)

    async def close(self) -> None:
        pass
