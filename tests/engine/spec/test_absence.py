"""TOML has no null: ``false`` leaves out what may be left out, and stays false where it is a value."""

from typing import Any

import pytest
from pydantic import ValidationError

from engine.spec.recipe import Recipe


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"credit": {"kind": "gae", "value_clip": False}}, "credit.value_clip"),
        ({"preset": "spear-grpo", "self_imitation": False}, "self_imitation"),
        ({"preset": "spear-grpo", "self_imitation": {"covariance": False}}, "self_imitation.covariance"),
        ({"selection": {"resampling": {"repeated_errors": False}}}, "selection.resampling.repeated_errors"),
    ],
)
def test_false_is_the_absence_of_what_would_otherwise_be_there(given: dict[str, Any], path: str) -> None:
    value: Any = Recipe.model_validate(given)
    for name in path.split("."):
        value = getattr(value, name)
    assert value is None


def test_false_is_an_absence_in_a_row_of_a_list_too() -> None:
    recipe = Recipe.model_validate({"stages": [{}, {"revisiting": False}]})
    assert [stage.revisiting for stage in recipe.stages] == [None, None]


def test_false_stays_false_where_it_is_a_value() -> None:
    recipe = Recipe.model_validate({"credit": {"kind": "gae", "whiten": False}})
    assert recipe.credit.model_dump()["whiten"] is False


@pytest.mark.parametrize("given", [{"objective": False}, {"credit": {"kind": "gae", "gamma": False}}])
def test_what_must_be_there_cannot_be_false(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Recipe.model_validate(given)
