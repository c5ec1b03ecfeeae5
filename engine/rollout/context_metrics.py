"""What the contexts of some rollouts came to, as ``context/...`` values: of a training step, and of an evaluation."""

from collections.abc import Sequence
from statistics import fmean

from engine.spec.trajectory import Trajectory


def context_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What contexts hold, in means over rollouts; nothing where the recipe has no context.

    ``context/turn_tokens`` is the mean over turns: what stood before one of them.
    """
    kept = [(trajectory, trajectory.context) for trajectory in trajectories if trajectory.context is not None]
    if not kept:
        return {}
    turns = sum(len(trajectory.turns) for trajectory, _ in kept)
    return {
        "context/segments": fmean(len(trajectory.segments) for trajectory, _ in kept),
        "context/opening_tokens": fmean(trajectory.opening_tokens for trajectory, _ in kept),
        "context/longest_tokens": fmean(trajectory.longest_context for trajectory, _ in kept),
        "context/turn_tokens": sum(trajectory.read_tokens for trajectory, _ in kept) / turns if turns else 0.0,
        "context/read_tokens": fmean(trajectory.read_tokens for trajectory, _ in kept),
        "context/sampled_tokens": fmean(trajectory.sampled_tokens for trajectory, _ in kept),
        "context/turns": turns / len(kept),
        "context/trimmed_characters": fmean(record.trimmed_characters for _, record in kept),
        "context/reminders": fmean(record.reminders for _, record in kept),
        "context/repeated_calls": fmean(record.repeated_calls for _, record in kept),
        "context/thoughts": fmean(record.thoughts for _, record in kept),
        "context/notes": fmean(record.notes for _, record in kept),
        "context/left_turns": fmean(record.left_turns for _, record in kept),
        "context/manage_prompts": fmean(record.manage_prompts for _, record in kept),
        "context/subagents": fmean(record.subagents for _, record in kept),
    }
