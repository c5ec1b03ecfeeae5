"""From where the groups of a step start, and what came of it (IPA; ALE, 3.2.4.4).

A group is one task and one start: its rollouts are compared with each other and with no others.
Parallel anchors give a task several groups, one for each prefix; sequential rollback gives it one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor

from engine.algorithms.rollback import anchor_prefixes, next_prefix
from engine.control.experts import Expert, ExpertPool, as_expert, can_be_expert
from engine.rollout.demonstrations import solution
from engine.rollout.environments.interface import Environment
from engine.rollout.requests import Prefill
from engine.rollout.seeds import derived_seed
from engine.spec.exploration import ExpertStarts, ParallelAnchors, SequentialRollback
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts of one task from one start."""

    number: int
    """Of the step, counted over its sampling rounds."""
    place: int
    """Of the task in the order in which the run takes tasks, from 0 on and without an end."""
    task: int
    prefill: Prefill | None = None
    """None: they begin at the start of the task."""
    from_expert: bool = False
    """It is one of the starts of a task that has an expert, the fresh one among them."""
    crucial: bool = False
    """Which turn of the expert is crucial is known."""

    @property
    def replayed(self) -> Sequence[Turn]:
        return () if self.prefill is None else self.prefill.turns


class StartPlanner:
    """Plans a round's groups from what the state knows.  Reads the pool and never changes it."""

    def __init__(self, spec: RunSpec, starts: ExpertStarts, environment: Environment) -> None:
        self._spec = spec
        self._starts = starts
        self._environment = environment

    def groups(self, step: int, *, first_group: int, first_place: int, pool: ExpertPool) -> list[Group]:
        """``prompts_per_step`` groups, tasks in turn; the first whose task has an expert start from it.

        ``share`` bounds their groups, in which a fresh anchor counts too.
        """
        wanted = self._spec.schedule.prompts_per_step
        # At least one; 1e-9: 0.7 * 10 is 6.999... in floating point and means 7.
        room = max(1, floor(self._starts.share * wanted + 1e-9))
        groups: list[Group] = []
        place = first_place
        while len(groups) < wanted:
            afresh = Group(0, place, place % self._spec.dataset.train_tasks)
            begun = self._begun(step, afresh, pool.tasks.get(afresh.task), min(room, wanted - len(groups)))
            room -= len(begun)
            for group in begun or [afresh]:
                groups.append(replace(group, number=first_group + len(groups)))
            place += 1
        return groups

    def _begun(self, step: int, afresh: Group, known: Expert | None, room: int) -> list[Group]:
        """The task's groups, not numbered yet; empty where it only begins afresh."""
        if room < 1 or (expert := self._expert(afresh.task, known)) is None:
            return []
        known = known or Expert()
        prefixes = self._prefixes(step, afresh.task, known, len(expert.turns), room)
        if not any(prefixes):
            return []
        crucial = known.crucial_turn(expert.turns, level=self._starts.crucial_level)
        return [
            replace(afresh, prefill=_prefill(expert, prefix, crucial), from_expert=True, crucial=crucial > 0)
            for prefix in prefixes
        ]

    def _expert(self, task: int, known: Expert | None) -> Trajectory | None:
        if known is not None and (known.lost or known.own is not None):
            return None if known.lost else known.own
        if not self._starts.demonstrations:
            return None
        scripted = solution(self._environment, self._spec.recipe.reward, task, seed=self._spec.seed)
        return scripted if can_be_expert(scripted) else None

    def _prefixes(self, step: int, task: int, known: Expert, turns: int, room: int) -> list[int]:
        if isinstance(self._starts.how, ParallelAnchors):
            seed = derived_seed("anchors", self._spec.seed, step, task)
            return anchor_prefixes(turns, min(self._starts.how.anchors, room), how=self._starts.how.how, seed=seed)
        return [max(0, turns - known.left)]


def _prefill(expert: Trajectory, prefix: int, crucial: int) -> Prefill | None:
    if prefix == 0:
        return None
    return Prefill(
        expert=expert.id,
        turns=tuple(expert.turns[:prefix]),
        of_turns=len(expert.turns),
        imitated=min(prefix, crucial),
    )


def learn(pool: ExpertPool, starts: ExpertStarts, groups: Sequence[Group], trajectories: Sequence[Trajectory]) -> None:
    """Bring the pool up to date with what a step's groups came to."""
    played: dict[int, list[Trajectory]] = {group.number: [] for group in groups}
    for trajectory in trajectories:
        played[trajectory.group].append(trajectory)
    for group in groups:
        _count(pool, starts, group, played[group.number])
    for group in groups:
        successes = [one for one in played[group.number] if can_be_expert(one)]
        if successes:
            pool.of(group.task).take(as_expert(min(successes, key=_clumsiness)))
    pool.cut(starts.experts)


def _count(pool: ExpertPool, starts: ExpertStarts, group: Group, rollouts: Sequence[Trajectory]) -> None:
    if not group.from_expert and group.task not in pool.tasks:
        return
    expert = pool.of(group.task)
    if not rollouts:
        expert.lost = expert.lost or group.prefill is not None
        return
    successes = sum(one.success for one in rollouts)
    expert.tally(group.replayed).add(rollouts=len(rollouts), successes=successes)
    if group.prefill is not None and isinstance(starts.how, SequentialRollback):
        rate, prefix = successes / len(rollouts), len(group.prefill.turns)
        expert.left = group.prefill.of_turns - next_prefix(prefix, success_rate=rate, threshold=starts.how.threshold)


def _clumsiness(success: Trajectory) -> tuple[int, int, int]:
    """Of a group's successes the one with the fewest failed calls, then turns, then the first."""
    return success.tool_errors, len(success.turns), success.index
