"""What a step plays: its groups and, in each of them, one request per rollout.

Everything is named and seeded before anything runs, from (the run's seed, the step) and the run's
state at the start of the step.  Where every part is off, this is ``train_requests`` to the bit.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.control.experts import ExpertPool
from engine.control.starts import Group, StartPlanner
from engine.rollout.environments import environment_for
from engine.rollout.lessons import Lessons
from engine.rollout.requests import EpisodeRequest, group_requests
from engine.rollout.worker import Collected
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory


@dataclass(slots=True)
class Played:
    """A step's rollouts, over all its sampling rounds."""

    tasks_taken: int
    """Training tasks that the run has taken, up to and including this step's."""
    groups: list[Group] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    discarded: Counter[str] = field(default_factory=Counter)
    rounds: int = 0

    def add(self, groups: Sequence[Group], collected: Collected) -> None:
        self.groups += groups
        self.trajectories += collected.trajectories
        self.discarded += collected.discarded
        self.rounds += 1
        self.tasks_taken = groups[-1].place + 1


class Planner:
    """Belongs to one run; keeps nothing between steps."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._environment = environment_for(spec)
        starts, experience = spec.recipe.expert_starts, spec.recipe.experience
        self._starts = None if starts is None else StartPlanner(spec, starts, self._environment)
        self._lessons = None if experience is None else Lessons(experience)

    def groups(self, step: int, played: Played, pool: ExpertPool) -> list[Group]:
        """The next round's; training tasks are taken in turn."""
        first_group, first_place = len(played.groups), played.tasks_taken
        if self._starts is not None:
            return self._starts.groups(step, first_group=first_group, first_place=first_place, pool=pool)
        size = self._spec.dataset.train_tasks
        return [
            Group(first_group + offset, first_place + offset, (first_place + offset) % size)
            for offset in range(self._spec.schedule.prompts_per_step)
        ]

    def requests(self, step: int, groups: Sequence[Group]) -> list[EpisodeRequest]:
        return [request for group in groups for request in self._of_group(step, group)]

    def _of_group(self, step: int, group: Group) -> list[EpisodeRequest]:
        plain = group_requests(self._spec, step, group.number, group.task)
        shown = 0 if self._lessons is None else self._lessons.shown(len(plain))
        lessons = self._lessons_of(group.task) if shown else ()
        return [
            replace(request, prefill=group.prefill, lessons=lessons if request.index < shown else ())
            for request in plain
        ]

    def _lessons_of(self, task: int) -> tuple[str, ...]:
        assert self._lessons is not None, "asked for only where the recipe has lessons"
        return self._lessons.for_question(self._environment.tasks("train")[task].question)
