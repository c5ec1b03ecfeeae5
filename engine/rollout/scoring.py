"""From what happened in an episode to its reward, component by component.

What an expert did in turns that were prefilled is neither paid nor charged.
"""

from collections.abc import Mapping, Sequence

from engine.algorithms.call_rewards import ENOUGH_TOOL_CALLS
from engine.algorithms.curriculum import linear_weight, tool_call_weight
from engine.spec.recipe import ComponentSchedule, Reward
from engine.spec.trajectory import Turn

RECIPE_COMPONENTS = frozenset({"outcome", "tool_errors", "tool_calls", "well_formed"})
"""The names of what a recipe pays; an environment's own components have others."""


def rewards_of(
    reward: Reward,
    *,
    success: bool,
    turns: Sequence[Turn],
    step: int,
    components: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The reward by component; the episode's reward is their sum.

    ``step`` is where in the run the curriculum stands.
    ``components`` are the environment's own, of other names than RECIPE_COMPONENTS.
    A component of SPEAR's that has no weight in the recipe is not there.
    """
    own = [turn for turn in turns if not turn.prefilled]
    calls = sum(len(turn.tool_calls) for turn in own)
    errors = sum(turn.failed_calls for turn in own)
    paid = {"outcome": reward.correct if success else reward.wrong, "tool_errors": reward.tool_error * errors}
    if reward.tool_calls:
        worked = calls - errors
        paid["tool_calls"] = _tool_calls_weight(reward, step) * min(1.0, worked / ENOUGH_TOOL_CALLS)
    if reward.well_formed:
        well_formed = bool(own) and all(turn.tool_calls or turn.answered for turn in own)
        paid["well_formed"] = reward.well_formed if well_formed else 0.0
    return paid | _scheduled(components or {}, reward, step)


def _scheduled(components: Mapping[str, float], reward: Reward, step: int) -> dict[str, float]:
    weights = {schedule.component: _weight(schedule, step) for schedule in reward.schedules}
    return {name: weights[name] * paid if name in weights else paid for name, paid in components.items()}


def _weight(schedule: ComponentSchedule, step: int) -> float:
    return linear_weight(
        step, schedule.first_step, schedule.last_step,
        first_weight=schedule.first_weight, last_weight=schedule.last_weight,
    )  # fmt: skip


def _tool_calls_weight(reward: Reward, step: int) -> float:
    decay_steps = reward.tool_calls_decay_steps
    return reward.tool_calls * (tool_call_weight(step, decay_steps) if decay_steps else 1.0)
