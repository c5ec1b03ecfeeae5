"""What the mismatch mask keeps out of training, told on the trajectory (ALE, eq. 4; of chunks: eq. 7)."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from engine.spec.objective import Ipa
from engine.spec.recipe import Recipe
from engine.spec.trajectory import Change, Trajectory
from engine.training.batch import per_turn


def mismatch_bound(recipe: Recipe) -> float | None:
    """H, above which ratios are masked; None where none is."""
    if isinstance(recipe.objective, Ipa):
        return recipe.objective.mismatch_bound
    masks = recipe.mismatch.mask is not None and recipe.objective.kind not in ("dpo", "none")
    return recipe.mismatch.mask_bound if masks else None


def with_mismatch_told(trajectory: Trajectory, cut: Sequence[bool], *, bound: float) -> Trajectory:
    """``cut`` is aligned with the trajectory's sample; each run of tokens in a turn is one change.

    The very trajectory where nothing is cut.
    """
    if not any(cut):
        return trajectory
    changes = [
        Change(kind="mismatch-masked", turn=number, start=start, stop=stop, reason="mismatch", details={"bound": bound})
        for number, cut_T in enumerate(per_turn(cut, trajectory))
        for start, stop in runs(cut_T)
    ]
    return trajectory.model_copy(update={"changes": [*trajectory.changes, *changes]})


def runs(cut: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Where it is true without a break: first place, and the place after the last."""
    position = 0
    for is_cut, members in groupby(cut, key=bool):
        stop = position + sum(1 for _ in members)
        if is_cut:
            yield position, stop
        position = stop
