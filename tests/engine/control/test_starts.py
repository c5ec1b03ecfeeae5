"""Where groups start: planned from the state alone, and learned from what they came to."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.control.experts import TALLY_ROLLOUTS, Expert, ExpertPool, Tally, prefix_key
from engine.control.planning import Planner, Played
from engine.control.starts import Group, learn
from engine.rollout.requests import Prefill, train_requests
from engine.rollout.worker import Collected
from engine.spec.exploration import ExpertStarts
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory

Rollout = Callable[..., Trajectory]


def spec_with(prompts: int = 8, **recipe: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "x",
            "seed": 5,
            "dataset": {"train_tasks": 20},
            "environment": {"levels": [3]},
            "model": {"context_tokens": 160},
            "recipe": recipe,
            "schedule": {"prompts_per_step": prompts, "group_size": 2, "minibatch_trajectories": 2},
        }
    )


def planned(spec: RunSpec, pool: ExpertPool | None = None, step: int = 1, tasks_taken: int = 0) -> list[Group]:
    return Planner(spec).groups(step, Played(tasks_taken), pool or ExpertPool())


def pool_of(**experts: Trajectory) -> ExpertPool:
    """``t3=...`` is the expert of task 3."""
    pool = ExpertPool()
    for name, expert in experts.items():
        pool.of(int(name[1:])).take(expert)
    return pool


@pytest.mark.parametrize("recipe", [{}, {"purification": {"share": 0.5}}])
def test_with_everything_off_the_requests_are_those_of_the_plain_step(recipe: dict[str, Any]) -> None:
    spec = spec_with(**recipe).model_copy()
    if recipe:
        spec = RunSpec.model_validate(
            {**spec.model_dump(), "environment": {"levels": [3], "sandbox": {"snapshots": True}}}
        )
    for step in (1, 2, 3):
        groups = planned(spec, step=step, tasks_taken=8 * (step - 1))
        assert Planner(spec).requests(step, groups) == train_requests(spec, step)


def test_without_an_expert_nothing_starts_from_one() -> None:
    spec = spec_with(expert_starts={"demonstrations": False})
    assert Planner(spec).requests(1, planned(spec)) == train_requests(spec, 1)


def test_rounds_go_on_with_groups_and_tasks(rollout: Rollout) -> None:
    spec = spec_with(selection={"dynamic_sampling": {}})
    planner, played = Planner(spec), Played(tasks_taken=16)
    for _ in range(2):
        groups = planner.groups(3, played, ExpertPool())
        played.add(groups, Collected())
    assert [group.number for group in played.groups] == list(range(16))
    assert [group.task for group in played.groups] == [n % 20 for n in range(16, 32)]
    assert (played.rounds, played.tasks_taken) == (2, 32)
    assert len({request.seed for request in planner.requests(3, played.groups)}) == 32


def test_parallel_anchors_give_a_task_a_group_for_each_prefix_the_fresh_start_among_them() -> None:
    spec = spec_with(expert_starts={"share": 0.5, "how": {"kind": "parallel", "anchors": 4}})
    groups = planned(spec)  # a scripted solution of level 3 has three turns
    assert [(group.number, group.task, len(group.replayed)) for group in groups] == [
        (0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 1), (4, 2, 0), (5, 3, 0), (6, 4, 0), (7, 5, 0),
    ]  # fmt: skip
    assert groups[1].prefill is not None
    assert (groups[1].prefill.of_turns, groups[1].prefill.expert, groups[1].prefill.imitated) == (
        3,
        "solution-train-0",
        0,
    )
    assert [group.from_expert for group in groups] == [True] * 4 + [False] * 4


def test_the_share_bounds_the_groups_and_a_narrow_one_the_anchors() -> None:
    spec = spec_with(expert_starts={"share": 0.25})
    assert [len(group.replayed) for group in planned(spec)] == [0, 2, 0, 0, 0, 0, 0, 0]
    assert {len(planned(spec_with(expert_starts={"share": share}))) for share in (0.125, 0.5, 1.0)} == {8}


@pytest.mark.parametrize(
    "starts",
    [{"share": 0.125}, {"share": 0.01}, {"share": 0.25, "how": {"kind": "parallel", "anchors": 1}}],
    ids=["share", "at least one", "anchors"],
)
def test_a_single_anchor_is_no_fresh_start(starts: dict[str, Any]) -> None:
    """Else such a recipe would never start from an expert."""
    groups = planned(spec_with(expert_starts=starts))
    assert [len(group.replayed) for group in groups if group.from_expert] == [1] * max(1, round(8 * starts["share"]))


def test_own_successes_go_before_scripted_ones(rollout: Rollout) -> None:
    spec = spec_with(expert_starts={"share": 0.25, "demonstrations": False})
    groups = planned(spec, pool_of(t2=rollout(turns=4, task=2)))
    assert [(group.task, len(group.replayed)) for group in groups][:5] == [(0, 0), (1, 0), (2, 0), (2, 3), (3, 0)]
    assert groups[3].prefill is not None
    assert groups[3].prefill.expert == "train-1-0-0"


def test_sequential_rollback_moves_to_the_head_as_the_policy_succeeds(rollout: Rollout) -> None:
    spec = spec_with(expert_starts={"share": 0.125, "demonstrations": False, "how": {"kind": "sequential"}})
    starts = spec.recipe.expert_starts
    assert starts is not None
    pool = pool_of(t0=rollout(turns=4))
    prefixes = []
    for success in (False, True, True, True, True):
        group = planned(spec, pool)[0]
        prefixes.append(len(group.replayed))
        learn(pool, starts, [group], [rollout(turns=4, success=success, index=index) for index in range(2)])
    assert prefixes == [3, 3, 2, 1, 0]


def test_a_new_expert_keeps_how_much_the_policy_masters(rollout: Rollout) -> None:
    expert = Expert(own=rollout(turns=4), left=2)
    expert.take(rollout(turns=6))
    spec = spec_with(expert_starts={"share": 0.125, "how": {"kind": "sequential"}})
    assert len(planned(spec, ExpertPool(tasks={0: expert}))[0].replayed) == 4


def test_random_anchors_depend_on_seed_step_and_task_alone(rollout: Rollout) -> None:
    spec = spec_with(expert_starts={"how": {"kind": "parallel", "anchors": 2, "how": "random"}, "share": 0.25})
    pool = pool_of(t0=rollout(turns=20))
    draws = [[len(group.replayed) for group in planned(spec, pool, step=step)] for step in range(1, 9)]
    assert draws == [[len(group.replayed) for group in planned(spec, pool, step=step)] for step in range(1, 9)]
    assert len({tuple(draw) for draw in draws}) > 4


def learned(rollout: Rollout, *plan: tuple[int, int], rollouts: int = 8) -> tuple[ExpertPool, Trajectory]:
    """After ``(prefix, successes)`` groups of one task; failures only replace no expert."""
    expert = rollout(turns=4)
    pool = pool_of(t0=expert)
    for number, (prefix, successes) in enumerate(plan):
        prefill = Prefill(expert.id, tuple(expert.turns[:prefix]), 4, 0) if prefix else None
        group = Group(number, 0, 0, prefill, from_expert=True)
        played = [rollout(group=number, index=index, turns=4, success=index < successes) for index in range(rollouts)]
        learn(pool, ExpertStarts(), [group], played)
    return pool, expert


def test_a_turn_is_crucial_when_success_behind_it_is_significantly_likelier(rollout: Rollout) -> None:
    pool, expert = learned(rollout, (0, 0), (1, 0), (2, 7), (3, 8))
    assert pool.tasks[0].crucial_turn(expert.turns, level=0.05) == 2
    spec = spec_with(expert_starts={"share": 0.5})
    groups = planned(spec, pool)
    assert [group.prefill.imitated if group.prefill else 0 for group in groups[:4]] == [0, 1, 2, 2]
    assert [group.crucial for group in groups[:5]] == [True] * 4 + [False]


def test_no_turn_is_crucial_without_enough_evidence(rollout: Rollout) -> None:
    pool, expert = learned(rollout, (0, 0), (1, 2), (2, 3), (3, 4))
    assert pool.tasks[0].crucial_turn(expert.turns, level=0.05) == 0


def test_between_distant_anchors_the_whole_stretch_is_crucial(rollout: Rollout) -> None:
    pool, expert = learned(rollout, (0, 0), (3, 8))
    assert pool.tasks[0].crucial_turn(expert.turns, level=0.05) == 3


def test_a_new_expert_keeps_the_tallies_of_what_it_begins_with(rollout: Rollout) -> None:
    pool, old = learned(rollout, (0, 1), (2, 1))
    keys = set(pool.tasks[0].tallies)
    pool.tasks[0].take(rollout(turns=5))  # the same turns and one more
    assert set(pool.tasks[0].tallies) == keys
    pool.tasks[0].take(rollout(turns=4, mark=7))
    assert set(pool.tasks[0].tallies) == {prefix_key([])}
    assert old.turns[0].token_ids == [0, 0]


def test_old_rollouts_fade() -> None:
    tally = Tally()
    for _ in range(TALLY_ROLLOUTS // 8):
        tally.add(rollouts=8, successes=0)
    for _ in range(20):
        tally.add(rollouts=8, successes=8)
    assert tally.rollouts <= TALLY_ROLLOUTS + 8
    assert tally.successes / tally.rollouts > 0.95


def test_the_latest_success_becomes_the_expert_the_least_clumsy_of_its_group(rollout: Rollout) -> None:
    pool = ExpertPool()
    played = [
        rollout(index=0, turns=5), rollout(index=1, turns=3), rollout(index=2, turns=2, success=False),
        rollout(index=3, turns=1),
    ]  # fmt: skip
    learn(pool, ExpertStarts(), [Group(0, 0, 0)], played)
    assert pool.tasks[0].own is not None
    assert pool.tasks[0].own.id == "train-1-0-1"
    learn(pool, ExpertStarts(), [Group(0, 20, 0)], [rollout(step=2, turns=4)])
    assert pool.tasks[0].own.id == "train-2-0-0"


def test_failures_make_no_expert(rollout: Rollout) -> None:
    pool = ExpertPool()
    learn(pool, ExpertStarts(), [Group(0, 0, 0)], [rollout(success=False)])
    assert pool.tasks == {}


def test_the_pool_is_bounded_and_keeps_the_latest(rollout: Rollout) -> None:
    pool = ExpertPool()
    for task in (1, 2, 3, 1):
        learn(pool, ExpertStarts(experts=2), [Group(0, task, task)], [rollout(task=task)])
    assert list(pool.tasks) == [3, 1]


def test_an_expert_none_of_whose_rollouts_came_back_is_not_used_until_there_is_another(rollout: Rollout) -> None:
    spec = spec_with(expert_starts={"share": 0.5})
    [start] = [group for group in planned(spec) if len(group.replayed) == 2]
    pool = ExpertPool()
    assert spec.recipe.expert_starts is not None
    learn(pool, spec.recipe.expert_starts, [start], [])
    assert [group.task for group in planned(spec, pool) if group.prefill][0] == 1
    learn(pool, spec.recipe.expert_starts, [Group(0, 0, 0)], [rollout()])
    assert [group.task for group in planned(spec, pool) if group.prefill][0] == 0


def test_saved_and_loaded_the_pool_plans_the_same(rollout: Rollout) -> None:
    pool, _ = learned(rollout, (0, 0), (1, 0), (2, 7), (3, 8))
    spec = spec_with(expert_starts={"share": 0.5})
    again = ExpertPool.model_validate_json(pool.model_dump_json())
    assert planned(spec, again) == planned(spec, pool)


POOL = [{"when_to_use": "cell", "content": "Show it."}]


def test_lessons_go_to_the_first_rollouts_of_every_group() -> None:
    spec = spec_with(experience={"pool": POOL, "share": 0.5})
    requests = Planner(spec).requests(1, planned(spec))
    assert [request.lessons for request in requests] == [("Show it.",), ()] * 8


def test_a_share_of_0_is_the_absence_of_lessons() -> None:
    spec = spec_with(experience={"pool": POOL, "share": 0.0})
    assert Planner(spec).requests(1, planned(spec)) == train_requests(spec_with(), 1)
