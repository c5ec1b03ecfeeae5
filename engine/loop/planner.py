"""The planner says what a step plays: its groups and, in each of them, one request per rollout.

Everything is named and seeded before anything runs, from the run's seed, the policy's version and the run's
state at the start of the step.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from engine.environments.contract import Environment
from engine.environments.registry import environment_for
from engine.loop.expert_pool import ExpertPool
from engine.loop.expert_starts import ExpertStartPlanner
from engine.rollout.demonstrations import demonstration_writer_for
from engine.rollout.experience import ExperienceRetriever
from engine.rollout.renderers.registry import renderer_for
from engine.rollout.requests import EpisodeRequest, group_requests
from engine.rollout.worker import Collected
from engine.spec.recipe import Recipe
from engine.spec.rollout_group import GroupPlan, RolloutGroup
from engine.spec.run import RunSpec
from engine.spec.schedule import Schedule
from engine.spec.trajectory import Trajectory

NOBODY: Mapping[int, Trajectory] = MappingProxyType({})
"""A teacher without a trajectory."""


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
    seconds: float = 0.0
    """How long they were played."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What was measured of the buffer that they came from, where there is one."""

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
        self.tasks_taken = plans[-1].tasks_before + 1


class Planner:
    """Belongs to one run; keeps nothing between steps.

    It takes the training tasks of the numbers ``tasks`` in turn.  ``solution`` gives a task's scripted solution;
    it is asked only where the recipe starts from demonstrations.  ``teacher`` has a teacher's, by the task's number.
    """

    def __init__(
        self,
        recipe: Recipe,
        schedule: Schedule,
        environment: Environment,
        solution: Callable[[int], Trajectory],
        teacher: Mapping[int, Trajectory],
        *,
        tasks: Sequence[int],
        seed: int,
    ) -> None:
        self._schedule = schedule
        self._purification = recipe.purification
        self._environment = environment
        self._tasks = tasks
        self._seed = seed
        starts, experience = recipe.expert_starts, recipe.experience
        self._starts = (
            None
            if starts is None
            else ExpertStartPlanner(
                starts, solution, teacher, prompts_per_step=schedule.prompts_per_step, tasks=tasks, seed=seed
            )
        )
        self._experience = None if experience is None else ExperienceRetriever(experience)

    @property
    def prompts_per_step(self) -> int:
        """The groups of one round, and those that an update takes."""
        return self._schedule.prompts_per_step

    def plans(self, version: int, played: Played, pool: ExpertPool) -> list[GroupPlan]:
        """The groups of the next round, for the policy of ``version``; training tasks are taken in turn."""
        first = GroupPlan(
            prompt=played.prompts,
            version=version,
            number=len(played.groups),
            tasks_before=played.tasks_taken,
            task=self._tasks[played.tasks_taken % len(self._tasks)],
        )
        if self._starts is not None:
            return self._starts.groups(first, pool)
        return [
            replace(
                first,
                prompt=first.prompt + offset,
                number=first.number + offset,
                tasks_before=first.tasks_before + offset,
                task=self._tasks[(first.tasks_before + offset) % len(self._tasks)],
            )
            for offset in range(self._schedule.prompts_per_step)
        ]

    def requests(self, plans: Sequence[GroupPlan]) -> list[EpisodeRequest]:
        return [request for plan in plans for request in self._requests(plan)]

    def _requests(self, plan: GroupPlan) -> list[EpisodeRequest]:
        plain = group_requests(self._schedule, self._purification, plan, seed=self._seed)
        shown = 0 if self._experience is None else self._experience.shown(len(plain))
        experience = self._experience_of(plan.task) if shown else ()
        return [
            replace(request, prefill=plan.prefill, experience=experience if request.member < shown else ())
            for request in plain
        ]

    def _experience_of(self, task: int) -> tuple[str, ...]:
        assert self._experience is not None, "asked for only where the recipe has experience"
        return self._experience.for_question(self._environment.tasks("train")[task].question)


def planner_for(
    spec: RunSpec, tasks: Sequence[int] | None = None, teacher: Mapping[int, Trajectory] = NOBODY
) -> Planner:
    """The planner that a spec asks for, put together of its parts.

    ``tasks`` are the numbers of the training tasks that a filter has left; None: all.  ``teacher`` has a teacher's
    trajectories, by the task's number.
    """
    environment = environment_for(spec.environment, spec.dataset)

    def solution(task: int) -> Trajectory:
        renderer = renderer_for(spec.model, spec.environment)
        writer = demonstration_writer_for(
            environment, renderer, spec.recipe.reward, seed=spec.seed, context=spec.recipe.context
        )
        return writer.solution(task)

    taken = range(spec.dataset.train_tasks) if tasks is None else tasks
    return Planner(spec.recipe, spec.schedule, environment, solution, teacher, tasks=taken, seed=spec.seed)
