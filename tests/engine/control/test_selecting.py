"""What is trained on, what is masked and still compared with, and what goes no further."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.algorithms.filters import highest_variance_groups, informative_groups
from engine.control.selecting import (
    DROPPED,
    LOW_VARIANCE,
    comparable,
    enough_informative,
    facts_of,
    informative,
    select,
)
from engine.spec.credit import Gae, Grpo, ReinforcePlusPlus
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory

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
        rollout(group=group, index=index, success=sign == "+")
        for group, signs in enumerate(outcomes)
        for index, sign in enumerate(signs)
    ]


def test_with_everything_off_all_comparable_rollouts_are_trained_on_as_they_are(rollout: Rollout) -> None:
    played = groups_of(rollout, "++", "--", "+-", "+")
    selected = select(spec_with({}), played)
    assert selected.kept == [one for one in played if one.group != 3]
    assert selected.dropped == []


@pytest.mark.parametrize(("credit", "least"), [(Grpo(), 2), (Gae(), 1), (ReinforcePlusPlus(), 1)])
def test_a_lone_rollout_is_kept_where_credit_needs_no_company(rollout: Rollout, credit: Any, least: int) -> None:
    assert (0 in comparable(credit, [rollout()])) == (least == 1)


def test_a_group_baseline_needs_company(rollout: Rollout) -> None:
    assert comparable(ReinforcePlusPlus(group_baseline=True), [rollout()]) == {}


def test_dynamic_sampling_keeps_the_first_informative_groups_and_records_the_others(rollout: Rollout) -> None:
    spec = spec_with({"dynamic_sampling": {}})
    selected = select(spec, groups_of(rollout, "++", "+-", "--", "-+", "+-"))
    assert [one.group for one in selected.kept] == [1, 1, 3, 3]
    assert [(one.group, one.masked_because) for one in selected.dropped[::2]] == [
        (0, DROPPED), (2, DROPPED), (4, DROPPED),
    ]  # fmt: skip
    assert all(one.masked_because is None for one in selected.kept)


def test_dynamic_sampling_goes_on_until_there_are_enough(rollout: Rollout) -> None:
    spec = spec_with({"dynamic_sampling": {}})
    assert not enough_informative(spec, groups_of(rollout, "+-", "++", "--"))
    assert enough_informative(spec, groups_of(rollout, "+-", "++", "--", "-+"))
    assert enough_informative(spec_with({}), groups_of(rollout, "++"))


def test_nothing_informative_teaches_nothing(rollout: Rollout) -> None:
    selected = select(spec_with({"dynamic_sampling": {}}), groups_of(rollout, "++", "--"))
    assert (selected.kept, selected.teaches, len(selected.dropped)) == ([], False, 4)


def test_informative_groups_are_those_of_the_pure_function(rollout: Rollout) -> None:
    draw = random.Random(0)
    outcomes = ["".join(draw.choice("+-") for _ in range(4)) for _ in range(40)]
    expected = informative_groups(torch.tensor([[float(sign == "+") for sign in signs] for signs in outcomes]))
    assert informative(comparable(Grpo(), groups_of(rollout, *outcomes))) == expected.nonzero().flatten().tolist()


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
    played = [rollout(index=0, **fields), rollout(index=1)]
    masked, sound = select(spec_with({"masks": [reason]}), played).kept
    assert (masked.masked_because, sound.masked_because) == (reason, None)
    assert select(spec_with({"masks": ["unreadable"]}), played).kept == played


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
        rollout(group=group, index=index, reward=reward)
        for group, row in enumerate(rewards)
        for index, reward in enumerate(row)
    ]
    expected = highest_variance_groups(torch.tensor(rewards, dtype=torch.float64), keep=keep).tolist()
    kept = select(spec_with({"keep_groups": keep}), played).kept
    assert [one.masked_because is None for one in kept[::4]] == expected
    assert {one.masked_because for one in kept} <= {None, LOW_VARIANCE}


def test_masked_rollouts_still_count_in_their_groups_variance_and_keep_their_first_reason(rollout: Rollout) -> None:
    played = [*groups_of(rollout, "++"), rollout(group=1, index=0, turns=1), rollout(group=1, index=1, success=False)]
    kept = select(spec_with({"masks": ["void-turn"], "keep_groups": 0.5}), played).kept
    assert [one.masked_because for one in kept] == [LOW_VARIANCE, LOW_VARIANCE, "void-turn", None]


def test_what_has_no_token_of_the_policys_teaches_nothing(rollout: Rollout) -> None:
    assert not select(spec_with({}), [rollout(index=index, prefilled=2) for index in range(2)]).teaches
