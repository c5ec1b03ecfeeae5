"""What the mismatch mask keeps out of training, recorded on the trajectory (ALE, eq. 4; of chunks: eq. 7)."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from engine.spec.objective import Ipa
from engine.spec.recipe import Recipe
from engine.spec.trajectory import Change, Trajectory


def mismatch_bound(recipe: Recipe) -> float | None:
    """H, above which ratios are masked; None where none is."""
    if isinstance(recipe.objective, Ipa):
        return recipe.objective.mismatch_bound
    masks = recipe.mismatch.mask is not None and recipe.objective.kind not in ("dpo", "none", "evaluation")
    return recipe.mismatch.mask_bound if masks else None


def with_mismatch_masked(
    trajectory: Trajectory, masked_per_turn: Sequence[Sequence[float]], *, bound: float
) -> Trajectory:
    """The trajectory with a change for each run of tokens that is masked in a turn."""
    changes = [
        Change(kind="mismatch-masked", turn=number, start=start, stop=stop, reason="mismatch", details={"bound": bound})
        for number, masked_T in enumerate(masked_per_turn)
        for start, stop in runs(masked_T)
    ]
    return trajectory.model_copy(update={"changes": [*trajectory.changes, *changes]})


def runs(masked: Sequence[float]) -> Iterator[tuple[int, int]]:
    """The first place of each unbroken run of true values, and the place after its last."""
    position = 0
    for is_masked, members in groupby(masked, key=bool):
        stop = position + sum(1 for _ in members)
        if is_masked:
            yield position, stop
        position = stop
