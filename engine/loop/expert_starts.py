"""From where the groups of a step start, and what came of it (IPA; ALE, 3.2.4.4).

Parallel anchors give a task several groups, one for each prefix; sequential rollback gives it one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import floor

from engine.algorithms.rollback import anchor_prefixes, next_prefix
from engine.loop.expert_pool import Expert, ExpertPool, as_expert, can_be_expert, clumsiness
from engine.seeds import derived_seed
from engine.spec.exploration import ExpertStarts, ParallelAnchors, SequentialRollback
from engine.spec.rollout_group import GroupPlan, Prefill, RolloutGroup
from engine.spec.trajectory import Trajectory


class ExpertStartPlanner:
    """Plans a round's groups from what the state knows.  Reads the pool and never changes it."""

    def __init__(
        self,
        starts: ExpertStarts,
        solution: Callable[[int], Trajectory],
        teacher: Mapping[int, Trajectory],
        *,
        prompts_per_step: int,
        tasks: Sequence[int],
        seed: int,
    ) -> None:
        """``solution`` gives a task's scripted solution; it is asked only where ``starts.demonstrations`` says so.

        ``teacher`` has experts of tasks that the policy has not solved itself, by the task's number.
        ``tasks`` are the numbers of the training tasks, taken in turn.
        """
        self._prompts_per_step = prompts_per_step
        self._tasks = tasks
        self._seed = seed
        self._starts = starts
        self._solution = solution
        self._teacher = teacher

    def groups(self, first: GroupPlan, pool: ExpertPool) -> list[GroupPlan]:
        """``prompts_per_step`` groups, tasks in turn; the first whose task has an expert start from it.

        ``first`` says where they begin: its numbers and its task are those of the first group.  ``share`` bounds the
        groups that start from experts, in which a fresh anchor counts too.
        """
        wanted = self._prompts_per_step
        # At least one; 1e-9: 0.7 * 10 is 6.999... in floating point and means 7.
        room = max(1, floor(self._starts.share * wanted + 1e-9))
        groups: list[GroupPlan] = []
        tasks_before = first.tasks_before
        while len(groups) < wanted:
            fresh = replace(first, tasks_before=tasks_before, task=self._tasks[tasks_before % len(self._tasks)])
            begun = self._begun(fresh, pool.tasks.get(fresh.task), min(room, wanted - len(groups)))
            room -= len(begun)
            for group in begun or [fresh]:
                number, prompt = first.number + len(groups), first.prompt + len(groups)
                groups.append(replace(group, number=number, prompt=prompt))
            tasks_before += 1
        return groups

    def _begun(self, fresh: GroupPlan, known: Expert | None, room: int) -> list[GroupPlan]:
        """The task's groups, not numbered yet; empty where it only begins afresh."""
        if room < 1 or (expert := self._expert(fresh.task, known)) is None:
            return []
        known = known or Expert()
        prefixes = self._prefixes(fresh, known, len(expert.turns), room)
        if not any(prefixes):
            return []
        crucial = known.crucial_turn(expert.turns, level=self._starts.crucial_level)
        return [
            replace(fresh, prefill=_prefill(expert, prefix, crucial), from_expert=True, crucial=crucial > 0)
            for prefix in prefixes
        ]

    def _expert(self, task: int, known: Expert | None) -> Trajectory | None:
        if known is not None and (known.lost or known.own is not None):
            return None if known.lost else known.own
        if task in self._teacher:
            return self._teacher[task]
        if not self._starts.demonstrations:
            return None
        scripted = self._solution(task)
        return scripted if can_be_expert(scripted) else None

    def _prefixes(self, plan: GroupPlan, known: Expert, turns: int, room: int) -> list[int]:
        if isinstance(self._starts.how, ParallelAnchors):
            seed = derived_seed("anchors", self._seed, plan.step, plan.task)
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
        reward=expert.reward,
    )


def learn(pool: ExpertPool, starts: ExpertStarts, groups: Sequence[RolloutGroup]) -> None:
    """Bring the pool up to date with what a step's groups came to."""
    for group in groups:
        _count(pool, starts, group)
    for group in groups:
        successes = [rollout for rollout in group.rollouts if can_be_expert(rollout)]
        if successes:
            pool.of(group.plan.task).take(as_expert(min(successes, key=clumsiness)))
    pool.cut(starts.experts)


def _count(pool: ExpertPool, starts: ExpertStarts, group: RolloutGroup) -> None:
    plan = group.plan
    if not plan.from_expert and plan.task not in pool.tasks:
        return
    expert = pool.of(plan.task)
    if not group.rollouts:
        expert.lost = expert.lost or plan.prefill is not None
        return
    expert.tally(plan.replayed).add(rollouts=len(group.rollouts), successes=group.successes)
    if plan.prefill is not None and isinstance(starts.how, SequentialRollback):
        rate, prefix = group.successes / len(group.rollouts), len(plan.prefill.turns)
        expert.left = plan.prefill.of_turns - next_prefix(prefix, success_rate=rate, threshold=starts.how.threshold)
