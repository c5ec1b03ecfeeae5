"""Where groups start: planned from the state alone, and learned from what they came to."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from engine.loop.expert_pool import TALLY_ROLLOUTS, Expert, ExpertPool, Tally, prefix_key
from engine.loop.expert_starts import learn
from engine.loop.planner import Played, planner_for
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import Collected
from engine.spec.exploration import ExpertStarts
from engine.spec.rollout_group import GroupPlan, Prefill, RolloutGroup
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory
from tests.engine.groups import requests_of

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


def planned(spec: RunSpec, pool: ExpertPool | None = None, step: int = 1, tasks_taken: int = 0) -> list[GroupPlan]:
    return planner_for(spec).plans(step - 1, Played(tasks_taken, prompts=tasks_taken), pool or ExpertPool())


def pool_of(**experts: Trajectory) -> ExpertPool:
    """``t3=...`` is the expert of task 3."""
    pool = ExpertPool()
    for name, expert in experts.items():
        pool.of(int(name[1:])).take(expert)
    return pool


def of_task(task: int, *rollouts: Trajectory) -> RolloutGroup:
    return RolloutGroup(
        GroupPlan(rollouts[0].prompt, rollouts[0].sampled_at_version, rollouts[0].prompt, task, task), rollouts
    )


SEEDS = {
    1: [
        4489724097974162898, 6902079134825866167, 4894463776507113069, 3282362948977084284,
        5836626001746889297, 8451616344610147895, 8945270890986243100, 5493927017583242762,
        4948683657977363136, 7401946271067600228, 4568907886993563164, 4779252523505218480,
        4261336129119034004, 8230410174073051542, 2646718497974963262, 4937483655819441457,
    ],
    3: [
        244640397330836991, 9042236242509044134, 5132588503175343237, 381687022605901855,
        5663256007471254005, 1943152913839792815, 8506570558179302062, 8984361138505711494,
        1321154971629953111, 2597155964982379324, 48064638072586129, 3397363306244200832,
        9079893102918694970, 2614498882463371348, 8276964405978595739, 2488696772316786995,
    ],
}  # fmt: skip
"""Recorded once, of the spec above: a run that is repeated in a later version samples with the same seeds."""
TASKS = {1: range(8), 3: (16, 17, 18, 19, 0, 1, 2, 3)}
PURIFIED = {1: "1100100001101001", 3: "0100010101111000"}


@pytest.mark.parametrize("recipe", [{}, {"purification": {"share": 0.5}}])
@pytest.mark.parametrize("step", [1, 3])
def test_with_everything_off_the_requests_are_those_of_the_plain_step(step: int, recipe: dict[str, Any]) -> None:
    spec = RunSpec.model_validate(
        {
            **spec_with().model_dump(),
            "recipe": recipe,
            "environment": {"levels": [3], "sandbox": {"snapshots": True}},
        }
    )
    plans = planned(spec, step=step, tasks_taken=8 * (step - 1))
    assert planner_for(spec).requests(plans) == [
        EpisodeRequest(
            purpose="train",
            prompt=8 * (step - 1) + group,
            member=index,
            version=step - 1,
            split="train",
            task=task,
            temperature=1.0,
            seed=SEEDS[step][2 * group + index],
            purify=bool(recipe) and PURIFIED[step][2 * group + index] == "1",
        )
        for group, task in enumerate(TASKS[step])
        for index in range(2)
    ]
    assert requests_of(spec, step) == planner_for(spec).requests(plans)


def test_without_an_expert_nothing_starts_from_one() -> None:
    spec = spec_with(expert_starts={"demonstrations": False})
    assert planner_for(spec).requests(planned(spec)) == requests_of(spec_with(), 1)


def test_rounds_go_on_with_groups_and_tasks(rollout: Rollout) -> None:
    spec = spec_with(selection={"dynamic_sampling": {}})
    planner, played = planner_for(spec), Played(tasks_taken=16, prompts=40)
    for _ in range(2):
        played.add(planner.plans(2, played, ExpertPool()), Collected())
    plans = [group.plan for group in played.groups]
    assert [plan.number for plan in plans] == list(range(16))
    assert [plan.task for plan in plans] == [n % 20 for n in range(16, 32)]
    assert [plan.prompt for plan in plans] == list(range(40, 56))
    assert {plan.version for plan in plans} == {2}
    assert (played.rounds, played.tasks_taken, played.prompts) == (2, 32, 56)
    assert len({request.seed for request in planner.requests(plans)}) == 32


def test_rollouts_that_come_back_in_any_order_find_their_groups_and_lost_groups_stay_empty(rollout: Rollout) -> None:
    planner, played = planner_for(spec_with(prompts=3)), Played(tasks_taken=19, prompts=0)
    for group, lost in ((0, {(1, 0), (1, 1)}), (3, {(3, 0), (5, 1)})):
        plans = planner.plans(1, played, ExpertPool())
        back = [(plan.number, index) for plan in plans for index in range(2) if (plan.number, index) not in lost]
        random.Random(group).shuffle(back)
        trajectories = [rollout(step=2, prompt=number, member=index) for number, index in back]
        played.add(plans, Collected(trajectories, Counter({"sandbox-lost": len(lost)})))
    assert [[rollout.id for rollout in group.rollouts] for group in played.groups] == [
        ["train-0-0", "train-0-1"], [], ["train-2-0", "train-2-1"],
        ["train-3-1"], ["train-4-0", "train-4-1"], ["train-5-0"],
    ]  # fmt: skip
    assert [(group.plan.number, group.plan.task) for group in played.groups] == [
        (0, 19), (1, 0), (2, 1), (3, 2), (4, 3), (5, 4),
    ]  # fmt: skip
    assert (played.discarded, played.rounds, played.tasks_taken) == (Counter({"sandbox-lost": 4}), 2, 25)


def test_a_rollout_of_no_group_of_the_round_is_no_ones(rollout: Rollout) -> None:
    planner, played = planner_for(spec_with(prompts=2)), Played(tasks_taken=0, prompts=0)
    with pytest.raises(KeyError):
        played.add(planner.plans(0, played, ExpertPool()), Collected([rollout(prompt=2)]))


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
    assert groups[3].prefill.expert == "train-0-0"


def test_sequential_rollback_moves_to_the_head_as_the_policy_succeeds(rollout: Rollout) -> None:
    spec = spec_with(expert_starts={"share": 0.125, "demonstrations": False, "how": {"kind": "sequential"}})
    starts = spec.recipe.expert_starts
    assert starts is not None
    pool = pool_of(t0=rollout(turns=4))
    prefixes = []
    for success in (False, True, True, True, True):
        group = planned(spec, pool)[0]
        prefixes.append(len(group.replayed))
        played = [rollout(turns=4, success=success, member=index) for index in range(2)]
        learn(pool, starts, [RolloutGroup(group, tuple(played))])
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
        group = GroupPlan(number, 0, number, 0, 0, prefill, from_expert=True)
        played = [rollout(prompt=number, member=index, turns=4, success=index < successes) for index in range(rollouts)]
        learn(pool, ExpertStarts(), [RolloutGroup(group, tuple(played))])
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
        rollout(member=0, turns=5), rollout(member=1, turns=3), rollout(member=2, turns=2, success=False),
        rollout(member=3, turns=1),
    ]  # fmt: skip
    learn(pool, ExpertStarts(), [of_task(0, *played)])
    assert pool.tasks[0].own is not None
    assert pool.tasks[0].own.id == "train-0-1"
    learn(pool, ExpertStarts(), [of_task(0, rollout(step=2, turns=4))])
    assert pool.tasks[0].own.id == "train-0-0"


def test_failures_make_no_expert(rollout: Rollout) -> None:
    pool = ExpertPool()
    learn(pool, ExpertStarts(), [of_task(0, rollout(success=False))])
    assert pool.tasks == {}


def test_the_pool_is_bounded_and_keeps_the_latest(rollout: Rollout) -> None:
    pool = ExpertPool()
    for task in (1, 2, 3, 1):
        learn(pool, ExpertStarts(experts=2), [of_task(task, rollout(task=task))])
    assert list(pool.tasks) == [3, 1]


def test_an_expert_none_of_whose_rollouts_came_back_is_not_used_until_there_is_another(rollout: Rollout) -> None:
    spec = spec_with(expert_starts={"share": 0.5})
    [start] = [group for group in planned(spec) if len(group.replayed) == 2]
    pool = ExpertPool()
    assert spec.recipe.expert_starts is not None
    learn(pool, spec.recipe.expert_starts, [RolloutGroup(start, ())])
    assert [group.task for group in planned(spec, pool) if group.prefill][0] == 1
    learn(pool, spec.recipe.expert_starts, [of_task(0, rollout())])
    assert [group.task for group in planned(spec, pool) if group.prefill][0] == 0


def test_saved_and_loaded_the_pool_plans_the_same(rollout: Rollout) -> None:
    pool, _ = learned(rollout, (0, 0), (1, 0), (2, 7), (3, 8))
    spec = spec_with(expert_starts={"share": 0.5})
    again = ExpertPool.model_validate_json(pool.model_dump_json())
    assert planned(spec, again) == planned(spec, pool)


POOL = [{"when_to_use": "cell", "content": "Show it."}]


def test_experience_goes_to_the_first_rollouts_of_every_group() -> None:
    spec = spec_with(experience={"pool": POOL, "share": 0.5})
    requests = planner_for(spec).requests(planned(spec))
    assert [request.experience for request in requests] == [("Show it.",), ()] * 8


def test_a_share_of_0_is_the_absence_of_experience() -> None:
    spec = spec_with(experience={"pool": POOL, "share": 0.0})
    assert planner_for(spec).requests(planned(spec)) == requests_of(spec_with(), 1)
