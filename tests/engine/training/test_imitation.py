"""What of an expert is imitated, decided once a step has been played."""

from typing import Any

import pytest

from engine.spec.recipe import Recipe
from engine.spec.rollout_group import rollouts_in
from engine.spec.trajectory import Change, Start, Trajectory
from engine.training.imitation import has_something_to_imitate, imitates, with_imitation_where_none_succeeded
from tests.engine.groups import grouped
from tests.engine.training.cast import trajectory, turn


def started(reward: float, *, imitated: int = 0, **more: Any) -> Trajectory:
    """Behind two turns of an expert."""
    prefilled = [turn([8], [20 + n], prefilled=True, imitated=n < imitated) for n in range(2)]
    reported = [
        Change(kind="prefilled", turn=n, start=0, stop=1, reason="imitated" if n < imitated else "replayed")
        for n in range(2)
    ]
    start = Start(expert="e", prefix=2, turns=3, reward=1.0)
    return trajectory(*prefilled, turn([8], [30]), reward=reward, start=start, changes=reported, **more)


def imitated(one: Trajectory) -> list[bool]:
    return [each.imitated for each in one.turns]


def test_a_group_without_success_imitates_all_that_it_replayed() -> None:
    failed = [started(-1.0, prompt=0, member=index, imitated=1) for index in range(2)]
    mixed = [started(reward, prompt=1, member=index, imitated=1) for index, reward in enumerate((-1.0, 1.0))]
    groups = with_imitation_where_none_succeeded(grouped([*failed, *mixed]))
    played = rollouts_in(groups)
    assert [imitated(rollout) for rollout in played] == [[True, True, False]] * 2 + [[True, False, False]] * 2
    assert [change.reason for rollout in played for change in rollout.changes] == ["imitated"] * 4 + [
        "imitated",
        "replayed",
    ] * 2
    assert all(ours is theirs for ours, theirs in zip(played[2:], mixed, strict=True))
    assert with_imitation_where_none_succeeded(groups) == groups


def test_a_fresh_start_has_nothing_to_imitate() -> None:
    fresh = trajectory(turn([8], [30]), reward=-1.0)
    [group] = with_imitation_where_none_succeeded(grouped([fresh]))
    assert group.rollouts[0] is fresh
    assert not has_something_to_imitate([group])


@pytest.mark.parametrize(
    ("reason", "imitable"), [("low-variance-group", True), ("overlong", True), ("quarantined", False)]
)
def test_only_an_alert_keeps_an_expert_from_being_imitated(reason: str, imitable: bool) -> None:
    assert has_something_to_imitate(grouped([started(-1.0, masked_because=reason)])) is imitable


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ({"preset": "ipa"}, True),
        ({"preset": "ipa", "objective": {"imitation_weight": 0.0}}, False),
        ({"preset": "grpo", "expert_starts": {}}, False),
    ],
)
def test_imitation_is_a_term_of_ipa(recipe: dict[str, Any], expected: bool) -> None:
    assert imitates(Recipe.model_validate(recipe)) is expected
