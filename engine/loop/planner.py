"""What a step plays: its groups and, in each of them, one request per rollout.

Everything is named and seeded before anything runs, from the run's seed, the policy's version and the run's
state at the start of the step.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.environments.registry import environment_for
from engine.loop.expert_pool import ExpertPool
from engine.loop.expert_starts import ExpertStartPlanner
from engine.rollout.demonstrations import demonstration_writer_for
from engine.rollout.experience import ExperienceRetriever
from engine.rollout.requests import EpisodeRequest, group_requests
from engine.rollout.worker import Collected
from engine.spec.rollout_group import GroupPlan, RolloutGroup
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory


@dataclass(slots=True)
class Played:
    """A step's groups, over all its sampling rounds."""

    tasks_taken: int
    """Training tasks that the run has taken, up to and including this step's."""
    prompts: int
    """Training prompts that the run has planned, likewise."""
    groups: list[RolloutGroup] = field(default_factory=list)
    discarded: Counter[str] = field(default_factory=Counter)
    rounds: int = 0

    def add(self, plans: Sequence[GroupPlan], collected: Collected) -> None:
        """One round.  The only place where rollouts find their group: on the way they travel in any order."""
        rollouts: dict[int, list[Trajectory]] = {plan.prompt: [] for plan in plans}
        for trajectory in collected.trajectories:
            rollouts[trajectory.prompt].append(trajectory)
        for found in rollouts.values():
            found.sort(key=lambda rollout: rollout.member)
        self.groups += [RolloutGroup(plan, tuple(rollouts[plan.prompt])) for plan in plans]
        self.discarded += collected.discarded
        self.rounds += 1
        self.prompts += len(plans)
        self.tasks_taken = plans[-1].place + 1


class Planner:
    """Belongs to one run; keeps nothing between steps."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._environment = environment_for(spec.environment, spec.dataset)
        starts, experience = spec.recipe.expert_starts, spec.recipe.experience
        self._starts = (
            None
            if starts is None
            else ExpertStartPlanner(
                starts,
                self._solution,
                prompts_per_step=spec.schedule.prompts_per_step,
                train_tasks=spec.dataset.train_tasks,
                seed=spec.seed,
            )
        )
        self._experience = None if experience is None else ExperienceRetriever(experience)

    def _solution(self, task: int) -> Trajectory:
        return demonstration_writer_for(self._spec).solution(task)

    def plans(self, version: int, played: Played, pool: ExpertPool) -> list[GroupPlan]:
        """The groups of the next round, for the policy of ``version``; training tasks are taken in turn."""
        first = GroupPlan(
            prompt=played.prompts,
            version=version,
            number=len(played.groups),
            place=played.tasks_taken,
            task=played.tasks_taken % self._spec.dataset.train_tasks,
        )
        if self._starts is not None:
            return self._starts.groups(first, pool)
        return [
            replace(
                first,
                prompt=first.prompt + offset,
                number=first.number + offset,
                place=first.place + offset,
                task=(first.place + offset) % self._spec.dataset.train_tasks,
            )
            for offset in range(self._spec.schedule.prompts_per_step)
        ]

    def requests(self, plans: Sequence[GroupPlan]) -> list[EpisodeRequest]:
        return [request for plan in plans for request in self._requests(plan)]

    def _requests(self, plan: GroupPlan) -> list[EpisodeRequest]:
        plain = group_requests(self._spec.schedule, self._spec.recipe.purification, plan, seed=self._spec.seed)
        shown = 0 if self._experience is None else self._experience.shown(len(plain))
        experience = self._experience_of(plan.task) if shown else ()
        return [
            replace(request, prefill=plan.prefill, experience=experience if request.member < shown else ())
            for request in plain
        ]

    def _experience_of(self, task: int) -> tuple[str, ...]:
        assert self._experience is not None, "asked for only where the recipe has experience"
        return self._experience.for_question(self._environment.tasks("train")[task].question)
