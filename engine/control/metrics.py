"""From a step's trajectories to the numbers on its page."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from engine.rollout.evaluation import success_rate, tool_error_rate
from engine.spec.trajectory import Trajectory

LEARNER_KEYS = {"learning_rate": "lr"}
"""What the learner calls differently from ``train/...``."""


def rollout_metrics(trajectories: Sequence[Trajectory], *, discarded: int, policy_version: int) -> dict[str, float]:
    """``train/...`` values of one step.  Staleness: how many versions the learner was ahead of a token's policy."""
    staleness = [
        policy_version - version for one in trajectories for turn in one.turns for version in turn.policy_versions
    ]
    return {
        "train/reward": fmean(one.reward for one in trajectories),
        "train/success": success_rate(trajectories),
        "train/tool_error_rate": tool_error_rate(trajectories),
        "train/tool_calls": fmean(len(one.tool_calls) for one in trajectories),
        "train/turns": fmean(len(one.turns) for one in trajectories),
        "train/response_tokens": fmean(one.sampled_tokens for one in trajectories),
        "train/truncated": fmean(one.stop_reason == "truncated" for one in trajectories),
        "train/discarded": discarded,
        "train/staleness_mean": fmean(staleness) if staleness else 0.0,
        "train/staleness_max": max(staleness, default=0),
    }


def learner_metrics(values: Mapping[str, float]) -> dict[str, float]:
    return {f"train/{LEARNER_KEYS.get(key, key)}": value for key, value in values.items()}
