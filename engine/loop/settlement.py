"""What became of rollouts in one step's update; of quarantined ones as the fields of ``QuarantineSettled`` events."""

from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any

from engine.loop.quarantine import HeldGroup, Release, is_out
from engine.spec.trajectory import Trajectory

NOTHING_LEFT = "nothing was left to learn from in this update"


def trained_on(step: int, rollouts: Iterable[Trajectory], learned: Mapping[str, float]) -> list[Trajectory]:
    """The same, with ``step`` as the one that trained on those that no mask kept out of its update.

    ``learned`` is what the learner returned; an update that it did not make trained on nobody.
    """
    if not learned["updates"]:
        return list(rollouts)
    return [
        rollout if rollout.masked_because is not None else rollout.model_copy(update={"trained_at_step": step})
        for rollout in rollouts
    ]


def settlements(step: int, release: Release, learned: Mapping[str, float]) -> list[dict[str, Any]]:
    """One for each that is certain now.  One that another alert put back into quarantine during the step is not.

    ``learned`` is what the learner said of the step's update; empty where there was none.
    """
    updated = {trajectory.id: trajectory for trajectory in release.updated}
    made = learned.get("train/updates", 1.0) > 0
    settled = [settlement for group in release.groups for settlement in _of_group(step, group, updated, made=made)]
    settled += [_fields(step, name, sampled_at, "too-late") for name, sampled_at in release.late.items()]
    settled += [_fields(step, name, sampled_at, "discarded") for name, sampled_at in release.discarded.items()]
    return settled


def _of_group(
    step: int, group: HeldGroup, updated: Mapping[str, Trajectory], *, made: bool
) -> Iterator[dict[str, Any]]:
    rewards = [member.reward for member in group.members]
    for name in group.out:
        trajectory = updated.get(name)
        if trajectory is None:
            yield _fields(step, name, group.step, "incomparable", group_size=len(rewards))
        elif trajectory.masked_because is not None or not made:
            if not is_out(trajectory):
                because = trajectory.masked_because or NOTHING_LEFT
                yield _fields(step, name, group.step, "masked", because=because)
        else:
            compared = {
                "advantage": mean_advantage(trajectory),
                "reward": trajectory.reward,
                "group_mean": fmean(rewards),
                "group_size": len(rewards),
                "rewards_differ": max(rewards) > min(rewards),
            }
            yield _fields(step, name, group.step, "trained-on", **compared)


def _fields(step: int, trajectory: str, sampled_at: int, outcome: str, **more: Any) -> dict[str, Any]:
    return {"step": step, "trajectory": trajectory, "outcome": outcome, "updates_since": step - sampled_at, **more}


def mean_advantage(trajectory: Trajectory) -> float:
    """Over the policy's tokens."""
    values = [value for turn in trajectory.turns if not turn.prefilled for value in turn.advantages or ()]
    return fmean(values) if values else 0.0
