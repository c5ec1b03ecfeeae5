"""From what happened in an episode to its reward, component by component."""

from collections.abc import Sequence

from engine.spec.recipe import Reward
from engine.spec.trajectory import Turn


def rewards_of(reward: Reward, *, success: bool, turns: Sequence[Turn]) -> dict[str, float]:
    """The components; the episode's reward is their sum."""
    errors = sum(turn.tool_call is not None and turn.tool_call.status == "error" for turn in turns)
    return {"outcome": reward.correct if success else reward.wrong, "tool_errors": reward.tool_error * errors}
