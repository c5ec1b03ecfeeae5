"""Experience that a rollout was shown: whether training sees it.

AgentEvolver, section 4.3.  What is taken out stands on the trajectory as a ``stripped`` change, and batch.py leaves
those tokens out of the sample; nothing else about the trajectory changes, so a reader still sees what was read.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from engine.spec.trajectory import Change, Trajectory

ExperienceTraining = Literal["strip", "keep", "hybrid"]


def stripped_because(
    trajectory: Trajectory, advantages: Sequence[float], training: ExperienceTraining
) -> Literal["strip", "hybrid"] | None:
    """The rule by which training does not see the experience that the trajectory was shown; None where it does.

    ``hybrid`` keeps it where A <= 0; a trajectory whose tokens have several ``advantages`` counts with their sum.
    """
    shown = any(turn.experience_span for turn in trajectory.turns)
    if not shown or training == "keep" or (training == "hybrid" and sum(advantages) <= 0):
        return None
    return training


def with_experience_stripped(
    trajectory: Trajectory, because: Literal["strip", "hybrid"], *, text_of: Callable[[list[int]], str]
) -> Trajectory:
    """The trajectory with a ``stripped`` change per turn that holds experience.  Stripping twice is stripping once."""
    spans = [(number, turn.experience_span) for number, turn in enumerate(trajectory.turns) if turn.experience_span]
    if any(change.kind == "stripped" for change in trajectory.changes):
        return trajectory
    changes = [_change(trajectory, number, *span, reason=because, text_of=text_of) for number, span in spans]
    return trajectory.model_copy(update={"changes": [*trajectory.changes, *changes]})


def _change(
    trajectory: Trajectory, number: int, start: int, stop: int, *, reason: str, text_of: Callable[[list[int]], str]
) -> Change:
    removed = trajectory.turns[number].context_ids[start:stop]
    return Change(
        kind="stripped",
        turn=number,
        start=start,
        stop=stop,
        reason=reason,
        before=text_of(removed),
        removed_ids=removed,
    )
