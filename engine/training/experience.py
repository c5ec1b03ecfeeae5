"""Experience that a rollout was shown: whether training sees them.

AgentEvolver, section 4.3.  What is taken out stands on the trajectory as a ``stripped`` change, and batch.py leaves
those tokens out of the sample; nothing else about the trajectory changes, so a reader still sees what was read.
"""

from collections.abc import Callable
from typing import Literal

from engine.models.tokenizer import tokenizer_for
from engine.spec.environment import Vocabulary
from engine.spec.trajectory import Change, Trajectory


def strip_experience(
    trajectory: Trajectory, training: Literal["strip", "keep", "hybrid"], *, vocabulary: Vocabulary
) -> Trajectory:
    """A credited trajectory with a ``stripped`` change per turn that holds lessons, where ``training`` says so.

    ``hybrid`` keeps them where A <= 0; a trajectory whose tokens have several advantages counts with their sum.
    Stripping twice is stripping once.
    """
    spans = [(number, turn.experience_span) for number, turn in enumerate(trajectory.turns) if turn.experience_span]
    done = any(change.kind == "stripped" for change in trajectory.changes)
    if not spans or done or training == "keep" or (training == "hybrid" and _advantage(trajectory) <= 0):
        return trajectory
    text_of = tokenizer_for(vocabulary).decode
    changes = [_change(trajectory, number, *span, reason=training, text_of=text_of) for number, span in spans]
    return trajectory.model_copy(update={"changes": [*trajectory.changes, *changes]})


def _advantage(trajectory: Trajectory) -> float:
    return sum(value for turn in trajectory.turns for value in turn.advantages or [])


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
