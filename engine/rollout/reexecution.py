"""An expert's turns, done again before the policy takes over (ALE, 3.2.4.4).

The world of the new episode stands where the expert's stood only if every call answers now as it
did then.  What was recorded is compared; a difference is no observation but the end of the episode.
"""

from collections.abc import Sequence

from engine.spec.message import AssistantMessage
from engine.spec.trajectory import ToolCall, Turn


class ReplayDiverged(Exception):
    """A replayed turn did not do what it did for the expert: the episode is discarded and counted."""


def check_is_call(number: int, message: AssistantMessage) -> None:
    """Raises ReplayDiverged where a prefilled turn has no call to be done again."""
    if not message.calls_tool:
        raise ReplayDiverged(f"turn {number} of the expert calls no tool")


def compare(number: int, recorded: Turn, replayed: Sequence[ToolCall]) -> None:
    """Raises ReplayDiverged unless the policy is shown the very same."""
    expected = recorded.tool_calls
    if [(call.output, call.status) for call in expected] != [(call.output, call.status) for call in replayed]:
        raise ReplayDiverged(f"turn {number}: {_shown(replayed)} instead of {_shown(expected)}")


def _shown(calls: Sequence[ToolCall]) -> str:
    return ", ".join(f"{call.status} {call.output!r}" for call in calls) or "no call"
