"""What is trained on, what is masked and still compared with, and what goes no further."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.algorithms.filters import highest_variance_groups
from engine.loop.group_filters import (
    DROPPED,
    LOW_VARIANCE,
    comparable,
    facts_of,
)
from engine.spec.credit import Gae, Grpo, ReinforcePlusPlus
from engine.spec.rollout_group import rollouts_in
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory
from tests.engine.groups import grouped, is_enough_for, selected_by

Rollout = Callable[..., Trajectory]


def spec_with(selection: dict[str, Any], prompts: int = 2, **recipe: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "x",
            "recipe": {"selection": selection, **recipe},
            "schedule": {"prompts_per_step": prompts, "group_size": 2, "minibatch_trajectories": 2},
        }
    )


def groups_of(rollout: Rollout, *outcomes: str) -> list[Trajectory]:
    """``"+-"`` is a group of one success and one failure."""
    return [
        rollout(prompt=group, member=index, success=sign == "+")
        for group, signs in enumerate(outcomes)
        for index, sign in enumerate(signs)
    ]


def test_with_everything_off_all_comparable_rollouts_are_trained_on_as_they_are(rollout: Rollout) -> None:
    played = groups_of(rollout, "++", "--", "+-", "+")
    selected = selected_by(spec_with({}), grouped(played))
    assert rollouts_in(selected.kept) == [rollout for rollout in played if rollout.prompt != 3]
    assert selected.dropped == []


@pytest.mark.parametrize(("credit", "least"), [(Grpo(), 2), (Gae(), 1), (ReinforcePlusPlus(), 1)])
def test_a_lone_rollout_is_kept_where_credit_needs_no_company(rollout: Rollout, credit: Any, least: int) -> None:
    group = grouped([rollout()])
    assert comparable(credit, group) == (group if least == 1 else [])


def test_a_group_baseline_needs_company(rollout: Rollout) -> None:
    assert comparable(ReinforcePlusPlus(group_baseline=True), grouped([rollout()])) == []


def test_dynamic_sampling_keeps_the_first_informative_groups_and_records_the_others(rollout: Rollout) -> None:
    spec = spec_with({"dynamic_sampling": {}})
    selected = selected_by(spec, grouped(groups_of(rollout, "++", "+-", "--", "-+", "+-")))
    kept, dropped = rollouts_in(selected.kept), rollouts_in(selected.dropped)
    assert [trajectory.prompt for trajectory in kept] == [1, 1, 3, 3]
    assert [(trajectory.prompt, trajectory.masked_because) for trajectory in dropped] == [
        (0, DROPPED), (0, DROPPED), (2, DROPPED), (2, DROPPED), (4, DROPPED), (4, DROPPED),
    ]  # fmt: skip
    assert all(trajectory.masked_because is None for trajectory in kept)
    assert selected.rollouts == [*kept, *dropped]


def test_no_group_of_a_batch_is_lost_whose_rounds_were_planned_one_by_one(rollout: Rollout) -> None:
    """Groups that are played beside the training are numbered anew in each round, and a batch has some of several."""
    groups = grouped(groups_of(rollout, "++", "+-", "--", "-+", "--", "++"))
    rounds = [replace(group, plan=replace(group.plan, number=group.plan.number % 3)) for group in groups]
    selected = selected_by(spec_with({"dynamic_sampling": {}}), rounds)
    assert [group.plan.prompt for group in selected.kept] == [1, 3]
    assert [group.plan.prompt for group in selected.dropped] == [0, 2, 4, 5]


def test_dynamic_sampling_goes_on_until_there_are_enough(rollout: Rollout) -> None:
    spec = spec_with({"dynamic_sampling": {}})
    assert not is_enough_for(spec, grouped(groups_of(rollout, "+-", "++", "--")))
    assert is_enough_for(spec, grouped(groups_of(rollout, "+-", "++", "--", "-+")))
    assert is_enough_for(spec_with({}), grouped(groups_of(rollout, "++")))


def test_nothing_informative_teaches_nothing(rollout: Rollout) -> None:
    selected = selected_by(spec_with({"dynamic_sampling": {}}), grouped(groups_of(rollout, "++", "--")))
    assert (selected.kept, selected.teaches, len(rollouts_in(selected.dropped))) == ([], False, 4)


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("overlong", {"stop_reason": "truncated"}),
        ("incomplete", {"stop_reason": "turn-limit"}),
        ("void-turn", {"stop_reason": "no-tool-call"}),
        ("void-turn", {"turns": 1}),
    ],
)
def test_a_mask_names_its_reason_and_only_where_it_is_switched_on(
    rollout: Rollout, reason: str, fields: dict[str, Any]
) -> None:
    played = [rollout(member=0, **fields), rollout(member=1)]
    masked, sound = rollouts_in(selected_by(spec_with({"masks": [reason]}), grouped(played)).kept)
    assert (masked.masked_because, sound.masked_because) == (reason, None)
    assert rollouts_in(selected_by(spec_with({"masks": ["unreadable"]}), grouped(played)).kept) == played


def test_tokens_of_an_expert_are_not_the_policys_but_its_calls_count(rollout: Rollout) -> None:
    facts = facts_of(rollout(turns=3, prefilled=2))
    assert (list(facts.token_ids), facts.text) == ([2, 0], "ab")
    assert [turn.called_tool for turn in facts.turns] == [True, True, False]


@pytest.mark.parametrize("seed", range(20))
def test_the_low_variance_filter_is_that_of_the_pure_function(rollout: Rollout, seed: int) -> None:
    draw = random.Random(seed)
    keep = draw.choice([0.25, 0.5, 0.75, 0.9, 1.0])
    rewards = [[draw.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(4)] for _ in range(draw.randint(1, 12))]
    played = [
        rollout(prompt=group, member=index, reward=reward)
        for group, row in enumerate(rewards)
        for index, reward in enumerate(row)
    ]
    expected = highest_variance_groups(rewards, keep=keep)
    kept = rollouts_in(selected_by(spec_with({"keep_groups": keep}), grouped(played)).kept)
    assert [rollout.masked_because is None for rollout in kept[::4]] == expected
    assert {rollout.masked_because for rollout in kept} <= {None, LOW_VARIANCE}


def test_masked_rollouts_still_count_in_their_groups_variance_and_keep_their_first_reason(rollout: Rollout) -> None:
    played = [
        *groups_of(rollout, "++"),
        rollout(prompt=1, member=0, turns=1),
        rollout(prompt=1, member=1, success=False),
    ]
    kept = rollouts_in(selected_by(spec_with({"masks": ["void-turn"], "keep_groups": 0.5}), grouped(played)).kept)
    assert [rollout.masked_because for rollout in kept] == [LOW_VARIANCE, LOW_VARIANCE, "void-turn", None]


def test_what_has_no_token_of_the_policys_teaches_nothing(rollout: Rollout) -> None:
    assert not selected_by(spec_with({}), grouped(rollout(member=index, prefilled=2) for index in range(2))).teaches


@pytest.mark.parametrize(("success", "teaches"), [(False, True), (True, False)])
def test_a_step_whose_rollouts_are_all_masked_teaches_by_imitation_where_none_succeeded(
    rollout: Rollout, success: bool, teaches: bool
) -> None:
    played = [
        rollout(member=index, turns=3, prefilled=2, success=success, masked_because="overlong") for index in range(2)
    ]
    ipa = {"credit": {"kind": "chunk-return"}, "objective": {"kind": "ipa"}}
    assert selected_by(spec_with({}, **ipa), grouped(played)).teaches is teaches
    assert not selected_by(spec_with({}), grouped(played)).teaches
