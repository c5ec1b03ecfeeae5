"""Which of a step's rollouts are trained on (``recipe.selection``).

    played ─► comparable groups ─► dynamic sampling ─► masks ─► low-variance filter ─► the learner
                 │ too few left       │ dropped           └───────────┴─ ``masked_because``

What is masked stays in its group and counts in its statistics.  What dynamic sampling drops is
recorded and goes no further.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.algorithms.filters import highest_variance_groups, is_informative
from engine.algorithms.sample_masks import SampleFacts, TurnFacts, mask_reason
from engine.spec.estimator import Estimator
from engine.spec.recipe import Recipe
from engine.spec.requirement import needing_one_segment
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.trajectory import Trajectory
from engine.training.imitation import has_something_to_imitate, imitates

DROPPED = "dynamic-sampling"
LOW_VARIANCE = "low-variance-group"
SEVERAL_SEGMENTS = "several-segments"
"""The recipe has a part that works on trajectories of one segment only."""


@dataclass(slots=True)
class Selected:
    """What became of a step's groups.  Of groups in which too few are left to compare there is nothing in here."""

    kept: list[RolloutGroup] = field(default_factory=list)
    """They go to the learner, masked rollouts among them."""
    dropped: list[RolloutGroup] = field(default_factory=list)
    quarantined: list[Trajectory] = field(default_factory=list)
    """Rollouts of this step, out of it because of an alert."""
    released: list[Trajectory] = field(default_factory=list)
    """Rollouts of earlier steps, credited and trained on in this one, since a reviewer found them benign."""
    imitates: bool = False
    """An expert's replayed turns are learned too, also where the policy's own are masked."""

    @property
    def teaches(self) -> bool:
        """Return whether there is anything to learn from."""
        trained = any(
            rollout.masked_because is None and rollout.sampled_tokens > 0 for rollout in rollouts_in(self.kept)
        )
        return trained or (self.imitates and has_something_to_imitate(self.kept))

    @property
    def rollouts(self) -> list[Trajectory]:
        """Those of this step that could be compared."""
        return rollouts_in([*self.kept, *self.dropped])


def select(recipe: Recipe, groups: Sequence[RolloutGroup], *, batch: int) -> Selected:
    """``batch`` is how many groups a step trains on at most, where dynamic sampling may choose."""
    selection = recipe.selection
    kept, dropped = comparable(recipe.credit, groups), list[RolloutGroup]()
    if selection.dynamic_sampling is not None:
        chosen = informative(kept)[:batch]
        prompts = {group.plan.prompt for group in chosen}
        dropped = [_with_reason(group, DROPPED) for group in kept if group.plan.prompt not in prompts]
        kept = chosen
    kept = [group.with_rollouts(masked(recipe, rollout) for rollout in group.rollouts) for group in kept]
    kept = _without_least_varied(kept, keep=selection.keep_groups)
    return Selected(kept, dropped, imitates=imitates(recipe))


def comparable(credit: Estimator, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """The groups in which enough rollouts came back for the credit to compare."""
    fewest = fewest_compared(credit)
    return [group for group in groups if len(group.rollouts) >= fewest]


def fewest_compared(credit: Estimator) -> int:
    """How many rollouts a group must have for the credit to say something."""
    return 2 if credit.compares_a_group() else 1


def informative(groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """Those with 0 < accuracy < 1 (DAPO, arXiv:2503.14476, eq. 11)."""
    return [group for group in groups if is_informative(group.successes, len(group.rollouts))]


def enough_informative(recipe: Recipe, groups: Sequence[RolloutGroup], *, batch: int) -> bool:
    """Return whether dynamic sampling has its batch.  Where it is off, the first round is enough."""
    if recipe.selection.dynamic_sampling is None:
        return True
    return len(informative(comparable(recipe.credit, groups))) >= batch


def masked(recipe: Recipe, rollout: Trajectory) -> Trajectory:
    """The same rollout, with a reason where the recipe has one not to train on it."""
    if len(rollout.segments) > 1 and needing_one_segment(recipe):
        return _masked_because(rollout, SEVERAL_SEGMENTS)
    selection = recipe.selection
    if not selection.masks:
        return rollout
    facts = facts_of(rollout)
    # Of a response that the context cut off, nobody knows how long it would have become: longer than it is.
    most = len(facts.token_ids) - (rollout.stop_reason == "truncated")
    reason = mask_reason(facts, max_response_tokens=most, switched_on=frozenset(selection.masks))
    return rollout if reason is None else _masked_because(rollout, reason)


def facts_of(rollout: Trajectory) -> SampleFacts:
    """An expert's turns count as turns; their tokens are not the policy's."""
    sampled = [turn for turn in rollout.turns if not turn.prefilled]
    return SampleFacts(
        token_ids=[token for turn in sampled for token in turn.token_ids],
        text="".join(piece for turn in sampled for piece in turn.pieces),
        turns=[TurnFacts(bool(turn.tool_calls), turn.answered) for turn in rollout.turns],
        cut_short=rollout.stop_reason in ("truncated", "turn-limit"),
    )


def _without_least_varied(groups: Sequence[RolloutGroup], *, keep: float) -> list[RolloutGroup]:
    """Mask the groups whose rewards vary least (Dr.BoT; SPEAR, A.8)."""
    kept = highest_variance_groups([group.rewards for group in groups], keep=keep)
    return [group if stays else _with_reason(group, LOW_VARIANCE) for group, stays in zip(groups, kept, strict=True)]


def _with_reason(group: RolloutGroup, reason: str) -> RolloutGroup:
    return group.with_rollouts(_masked_because(rollout, reason) for rollout in group.rollouts)


def _masked_because(rollout: Trajectory, reason: str) -> Trajectory:
    """The first reason stays."""
    return rollout if rollout.masked_because is not None else rollout.model_copy(update={"masked_because": reason})
