"""From a step's trajectories to the numbers on its page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from engine.loop.group_filters import DROPPED, LOW_VARIANCE, Selected
from engine.loop.planner import Played
from engine.loop.quarantine import Release, is_out
from engine.rollout.context_metrics import context_metrics
from engine.rollout.evaluation import of_parts, success_rate, tool_error_rate
from engine.rollout.worker import ENVIRONMENT_ATTEMPTS
from engine.spec.agent import ExitClass
from engine.spec.recipe import Recipe
from engine.spec.rollout_group import rollouts_in
from engine.spec.selection import Selection
from engine.spec.trajectory import Trajectory
from sandboxes.spec import SandboxSpec

LEARNER_KEYS = {"learning_rate": "lr"}
"""What the learner calls differently from ``train/...``."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What one step came to, before the learner's own numbers."""

    recipe: Recipe
    played: Played
    selected: Selected
    policy_version: int
    updated: bool = False
    """The weights were updated, be it from what was released or replayed alone."""


def step_metrics(facts: StepFacts) -> dict[str, float]:
    """``train/...`` values of one step; those of a part of the recipe only where it is there.

    They speak of all rollouts that could be compared, whether they were then trained on or not.
    """
    recipe, everyone = facts.recipe, facts.selected.rollouts
    values = rollout_metrics(everyone, discarded=facts.played.discarded.total(), policy_version=facts.policy_version)
    values |= _selection_metrics(recipe.selection, facts)
    if recipe.purification is not None:
        values |= _repair_metrics(everyone)
    if recipe.selection.resampling is not None:
        values["train/resampled"] = _replaced(everyone)
    if recipe.expert_starts is not None:
        values |= _start_metrics(facts.played)
    if lost := facts.played.discarded["environment-lost"] * ENVIRONMENT_ATTEMPTS + _losses(everyone):
        values["train/environment_lost"] = lost
    return values | agent_metrics(everyone) | context_metrics(everyone) | part_metrics(everyone)


def quarantine_metrics(sandboxes: Sequence[SandboxSpec], selected: Selected, release: Release) -> dict[str, float]:
    """Return what alerts took out of this step, and what came of those of earlier steps.

    Where sandboxes have no network they are told only of steps in which there was something.
    """
    values: dict[str, float] = {
        "train/quarantined": len(selected.quarantined),
        "train/released": sum(not is_out(rollout) for rollout in release.updated),
        "train/quarantine_discarded": len(release.discarded),
        "train/released_too_late": len(release.late),
    }
    has_network = any(sandbox.network != "none" for sandbox in sandboxes)
    return values if has_network or any(values.values()) else {}


def rollout_metrics(trajectories: Sequence[Trajectory], *, discarded: int, policy_version: int) -> dict[str, float]:
    """``train/...`` values of one step.  Staleness: how many versions the learner was ahead of a token's policy.

    Where all rollouts are in quarantine there is nobody to speak of.
    """
    if not trajectories:
        return {"train/discarded": discarded}
    staleness = [
        policy_version - version
        for trajectory in trajectories
        for turn in trajectory.turns
        for version in turn.policy_versions
    ]
    return {
        "train/reward": fmean(trajectory.reward for trajectory in trajectories),
        "train/success": success_rate(trajectories),
        "train/tool_error_rate": tool_error_rate(trajectories),
        "train/tool_calls": fmean(len(trajectory.tool_calls) for trajectory in trajectories),
        "train/turns": fmean(len(trajectory.turns) for trajectory in trajectories),
        "train/response_tokens": fmean(trajectory.sampled_tokens for trajectory in trajectories),
        "train/truncated": fmean(trajectory.stop_reason == "truncated" for trajectory in trajectories),
        "train/discarded": discarded,
        "train/staleness_mean": fmean(staleness) if staleness else 0.0,
        "train/staleness_max": max(staleness, default=0),
    }


def agent_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """How many agents ended in which way, and what came of their requests; nothing where none played."""
    records = [trajectory.agent for trajectory in trajectories if trajectory.agent is not None]
    if not records:
        return {}
    exits = Counter(record.exit for record in records)
    refused = Counter[str]()
    for record in records:
        refused.update({calls.kind: calls.number for calls in record.refused})
    return {
        **{f"agents/{exit}": exits[exit] for exit in get_args(ExitClass)},
        **{f"agents/refused/{kind}": number for kind, number in sorted(refused.items())},
        "agents/unfinished_calls": sum(record.unfinished for record in records),
        "agents/dropped_tokens": sum(record.dropped_tokens for record in records),
        "agents/segments": fmean(len(trajectory.segments) for trajectory in trajectories if trajectory.agent),
    }


def part_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """``part/NAME/...`` of each part of the environment that was played; nothing where it has no parts."""
    values: dict[str, float] = {}
    for part, rollouts in of_parts(trajectories).items():
        values |= {
            f"part/{part}/groups": len({rollout.prompt for rollout in rollouts}),
            f"part/{part}/reward": fmean(rollout.reward for rollout in rollouts),
            f"part/{part}/success": success_rate(rollouts),
            f"part/{part}/turns": fmean(len(rollout.turns) for rollout in rollouts),
            f"part/{part}/tool_error_rate": tool_error_rate(rollouts),
        }
    return values


def staleness_shares(trained: Sequence[Trajectory], *, policy_version: int, ratio: int) -> dict[str, float]:
    """``staleness/N``: the share of the rollouts that were trained on whose first token was N versions old."""
    ages = Counter(policy_version - rollout.sampled_at_version for rollout in trained)
    total = ages.total()
    return {f"staleness/{age}": ages[age] / total for age in range(ratio + 1)} if total else {}


def learner_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """``train/...``, except what has a prefix of its own: ``sil/...``, ``critic/...``, ``dpo/...``."""
    return {key if "/" in key else f"train/{LEARNER_KEYS.get(key, key)}": value for key, value in values.items()}


def _selection_metrics(selection: Selection, facts: StepFacts) -> dict[str, float]:
    reasons: list[str] = [*selection.masks, *([LOW_VARIANCE] if selection.keep_groups < 1 else [])]
    masked = Counter(rollout.masked_because for rollout in rollouts_in(facts.selected.kept))
    values: dict[str, float] = {f"train/masked/{reason}": masked[reason] for reason in reasons}
    if selection.dynamic_sampling is not None:
        values[f"train/masked/{DROPPED}"] = len(rollouts_in(facts.selected.dropped))
        values["train/groups_dropped"] = len(facts.selected.dropped)
        values["train/sampling_rounds"] = facts.played.rounds
    if values:
        values["train/updates_left_out"] = float(not facts.selected.teaches and not facts.updated)
    return values


def _repair_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """First-attempt errors count as if nothing had been repaired: every call that is there was attempted once."""
    errors = sum(
        trajectory.tool_errors if trajectory.first_attempt_errors is None else trajectory.first_attempt_errors
        for trajectory in trajectories
    )
    calls = sum(len(trajectory.tool_calls) for trajectory in trajectories)
    repairs = Counter(
        change.reason for trajectory in trajectories for change in trajectory.changes if change.kind == "purified"
    )
    return {
        "train/first_attempt_error_rate": errors / calls if calls else 0.0,
        "train/repairs_shallow": repairs["shallow"],
        "train/repairs_deep": repairs["deep"],
        "train/repairs_failed": sum(
            change.kind == "purification-failed" for trajectory in trajectories for change in trajectory.changes
        ),
    }


def _losses(trajectories: Sequence[Trajectory]) -> int:
    """How often these were begun in a process of their environment that was lost."""
    changes = [change for trajectory in trajectories for change in trajectory.changes]
    return sum(int(change.details.get("environment-lost", 0)) for change in changes if change.kind == "resampled")


def _replaced(trajectories: Sequence[Trajectory]) -> int:
    """Rollouts in whose place another was played."""
    changes = [change for trajectory in trajectories for change in trajectory.changes if change.kind == "resampled"]
    return sum(int(change.details.get("tries", 1)) for change in changes)


def _start_metrics(played: Played) -> dict[str, float]:
    """``success_fresh`` is that of rollouts which found everything by themselves; absent where there is none."""
    prefills = [group.plan.prefill for group in played.groups if group.plan.prefill is not None]
    fresh = rollouts_in(group for group in played.groups if group.plan.prefill is None)
    values = {
        "train/prefilled_groups": len(prefills),
        "train/prefix_share": fmean(len(prefill.turns) / prefill.of_turns for prefill in prefills) if prefills else 0.0,
        "train/crucial_found": sum(group.plan.crucial for group in played.groups),
        "train/replay_diverged": played.discarded["replay-diverged"],
    }
    return values | ({"train/success_fresh": success_rate(fresh)} if fresh else {})
