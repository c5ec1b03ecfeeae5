"""Which of a step's rollouts are trained on (``recipe.selection``).

    played ─► comparable groups ─► dynamic sampling ─► masks ─► low-variance filter ─► the learner
                 │ too few left       │ dropped           └───────────┴─ ``masked_because``

What is masked stays in its group and counts in its statistics.  What dynamic sampling drops is
recorded and goes no further.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor
from statistics import pvariance

from engine.algorithms.sample_masks import SampleFacts, TurnFacts, mask_reason
from engine.spec.credit import Credit, compares_a_group
from engine.spec.run import RunSpec
from engine.spec.selection import Selection
from engine.spec.trajectory import Trajectory

DROPPED = "dynamic-sampling"
LOW_VARIANCE = "low-variance-group"

Groups = dict[int, list[Trajectory]]


@dataclass(slots=True)
class Selected:
    """``kept`` and ``dropped`` have no group in common."""

    kept: list[Trajectory] = field(default_factory=list)
    """For the learner, masked ones among them."""
    dropped: list[Trajectory] = field(default_factory=list)
    quarantined: list[Trajectory] = field(default_factory=list)
    """Of this step, out of it because of an alert."""
    released: list[Trajectory] = field(default_factory=list)
    """Of earlier steps, credited and trained on in this one, since a reviewer found them benign."""

    @property
    def teaches(self) -> bool:
        """Whether there is anything to learn from."""
        return any(one.masked_because is None and one.sampled_tokens > 0 for one in self.kept)

    @property
    def all(self) -> list[Trajectory]:
        """Those of this step that could be compared."""
        return [*self.kept, *self.dropped]


def select(spec: RunSpec, trajectories: Sequence[Trajectory]) -> Selected:
    """Nothing is in either list of groups in which too few are left to compare."""
    selection = spec.recipe.selection
    kept = comparable(spec.recipe.credit, trajectories)
    dropped: Groups = {}
    if selection.dynamic_sampling is not None:
        chosen = informative(kept)[: spec.schedule.prompts_per_step]
        dropped = {number: group for number, group in kept.items() if number not in chosen}
        kept = {number: kept[number] for number in chosen}
    kept = {number: [masked(selection, one) for one in group] for number, group in kept.items()}
    kept = _without_least_varied(kept, keep=selection.keep_groups)
    return Selected(_flat(kept), [_with_reason(one, DROPPED) for one in _flat(dropped)])


def comparable(credit: Credit, trajectories: Sequence[Trajectory]) -> Groups:
    """The groups in which enough rollouts came back for the credit to compare, in the order of their numbers."""
    fewest = 2 if compares_a_group(credit) else 1
    groups: Groups = defaultdict(list)
    for one in trajectories:
        groups[one.group].append(one)
    return {number: groups[number] for number in sorted(groups) if len(groups[number]) >= fewest}


def informative(groups: Groups) -> list[int]:
    """The numbers of those with 0 < accuracy < 1 (DAPO, arXiv:2503.14476, eq. 11)."""
    return [
        number
        for number, group in groups.items()
        if any(one.success for one in group) and not all(one.success for one in group)
    ]


def enough_informative(spec: RunSpec, trajectories: Sequence[Trajectory]) -> bool:
    """Whether dynamic sampling has its batch.  Where it is off, the first round is enough."""
    if spec.recipe.selection.dynamic_sampling is None:
        return True
    return len(informative(comparable(spec.recipe.credit, trajectories))) >= spec.schedule.prompts_per_step


def masked(selection: Selection, one: Trajectory) -> Trajectory:
    """The same, with a reason where the recipe has one not to train on it."""
    if not selection.masks:
        return one
    facts = facts_of(one)
    # Of a response that the context cut off, nobody knows how long it would have become: longer than it is.
    most = len(facts.token_ids) - (one.stop_reason == "truncated")
    reason = mask_reason(facts, max_response_tokens=most, switched_on=frozenset(selection.masks))
    return one if reason is None else _with_reason(one, reason)


def facts_of(one: Trajectory) -> SampleFacts:
    """An expert's turns count as turns; their tokens are not the policy's."""
    sampled = [turn for turn in one.turns if not turn.prefilled]
    last = len(one.turns) - 1
    return SampleFacts(
        token_ids=[token for turn in sampled for token in turn.token_ids],
        text="".join(piece for turn in sampled for piece in turn.pieces),
        turns=[
            TurnFacts(turn.tool_call is not None, number == last and one.stop_reason == "answered")
            for number, turn in enumerate(one.turns)
        ],
        cut_short=one.stop_reason in ("truncated", "turn-limit"),
    )


def _without_least_varied(groups: Groups, *, keep: float) -> Groups:
    """Mask the floor((1 - keep) P) groups whose rewards vary least (Dr.BoT; SPEAR, A.8).

    The rule of ``filters.highest_variance_groups``, exact and without torch, which this process does not load.
    """
    # 1e-9: (1 - 0.9) * 10 is 0.999... in floating point and means 1.
    surplus = floor((1 - keep) * len(groups) + 1e-9)
    variance = {number: pvariance([one.reward for one in group]) for number, group in groups.items()}
    # Stable: of equal groups the earlier stay.
    kept = sorted(groups, key=lambda number: -variance[number])[: len(groups) - surplus]
    return {
        number: group if number in kept else [_with_reason(one, LOW_VARIANCE) for one in group]
        for number, group in groups.items()
    }


def _with_reason(one: Trajectory, reason: str) -> Trajectory:
    """The first reason stays."""
    return one if one.masked_because is not None else one.model_copy(update={"masked_because": reason})


def _flat(groups: Groups) -> list[Trajectory]:
    return [one for group in groups.values() for one in group]
