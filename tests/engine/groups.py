"""Groups as the planner makes them, for tests that begin with rollouts."""

from collections.abc import Iterable, Mapping, Sequence

from engine.loop.expert_pool import ExpertPool
from engine.loop.group_filters import Selected, enough_informative, select
from engine.loop.planner import Played, planner_for
from engine.rollout.requests import EpisodeRequest, evaluation_requests
from engine.spec.rollout_group import GroupPlan, RolloutGroup
from engine.spec.run import RunSpec
from engine.spec.trajectory import Purpose, Trajectory


def grouped(trajectories: Iterable[Trajectory]) -> list[RolloutGroup]:
    """One group per ``Trajectory.prompt``, in the order in which they first appear.

    A plan says the version and the prompt; the tasks that a planner would have taken are not known here.
    """
    members: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        members.setdefault(trajectory.prompt, []).append(trajectory)
    return [
        RolloutGroup(
            GroupPlan(prompt, rollouts[0].sampled_at_version, number=prompt, tasks_before=prompt, task=prompt),
            tuple(rollouts),
        )
        for prompt, rollouts in members.items()
    ]


def requests_of(spec: RunSpec, step: int) -> list[EpisodeRequest]:
    """What a run without experts plays in ``step`` (from 1), if no step before it sampled twice."""
    prompts = (step - 1) * spec.schedule.prompts_per_step
    planner, played = planner_for(spec), Played(tasks_taken=prompts, prompts=prompts)
    return planner.requests(planner.plans(step - 1, played, ExpertPool()))


def evaluations_of(spec: RunSpec, version: int, tasks: int, prompts: Mapping[Purpose, int]) -> list[EpisodeRequest]:
    """What a run plays to evaluate the policy of ``version``."""
    return evaluation_requests(spec.evaluation, spec.recipe.purification, version, tasks, prompts, seed=spec.seed)


def selected_by(spec: RunSpec, groups: Sequence[RolloutGroup]) -> Selected:
    return select(spec.recipe, groups, batch=spec.schedule.prompts_per_step)


def is_enough_for(spec: RunSpec, groups: Sequence[RolloutGroup]) -> bool:
    return enough_informative(spec.recipe, groups, batch=spec.schedule.prompts_per_step)
