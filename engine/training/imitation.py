"""Which of an expert's replayed turns imitation learns (IPA; ALE, 3.2.4.4 and eq. 8).  No torch.

A rollout is told when it begins how far imitation reaches: to the crucial turn, where one is known.  Where then no
rollout of its group succeeds there is no positive signal behind that start, and waiting for a significant crucial
turn would mean to learn nothing: all that was replayed is imitated.
"""

from collections.abc import Sequence

from engine.spec.objective import Ipa
from engine.spec.recipe import Recipe
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.security import QUARANTINED
from engine.spec.trajectory import Change, Trajectory


def imitates(recipe: Recipe) -> bool:
    """Return whether the loss has an imitation term.  A weight of 0 is its absence."""
    return isinstance(recipe.objective, Ipa) and recipe.objective.imitation_weight > 0


def is_imitable(masked_because: str | None) -> bool:
    """Whatever keeps the policy's own tokens out of training says nothing of the expert's, except an alert."""
    return masked_because != QUARANTINED


def with_imitation_where_none_succeeded(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """The groups of a step, of which one without any success imitates everything that it replayed."""
    return [group if group.successes else group.with_rollouts(map(imitating_all, group.rollouts)) for group in groups]


def has_something_to_imitate(groups: Sequence[RolloutGroup]) -> bool:
    return any(
        turn.imitated
        for trajectory in rollouts_in(with_imitation_where_none_succeeded(groups))
        if is_imitable(trajectory.masked_because)
        for turn in trajectory.turns
    )


def imitating_all(trajectory: Trajectory) -> Trajectory:
    """The trajectory with everything that was replayed imitated; itself where nothing more is than was before."""
    if not any(turn.prefilled and not turn.imitated for turn in trajectory.turns):
        return trajectory
    turns = [turn.model_copy(update={"imitated": True}) if turn.prefilled else turn for turn in trajectory.turns]
    changes = [_as_imitated(change) if change.kind == "prefilled" else change for change in trajectory.changes]
    return trajectory.with_turns(turns).model_copy(update={"changes": changes})


def _as_imitated(change: Change) -> Change:
    return change.model_copy(update={"reason": "imitated"})
