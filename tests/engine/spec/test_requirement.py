"""What parts of a recipe require of each other.  Every refusal that a user can meet is in ``test_problems.py``."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from engine.spec.presets import preset, preset_names
from engine.spec.recipe import Recipe
from engine.spec.requirement import Part, Requirement, at_least, parts_in, refusals_in
from engine.spec.run import RunSpec
from engine.spec.strict import Strict


class Lamp(Part):
    brightness: int = 1
    kind: str = "lamp"
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("battery.charge", at_least(2), "a {kind} needs 2 and has {value}", "charge it"),
        Requirement(
            "battery.charge",
            at_least(4),
            "a bright {kind} needs 4",
            "dim it to {part.brightness}",
            field="lamp.brightness",
            when=lambda lamp: lamp.brightness > 1,
            given="switch",
        ),
    )


class Battery(Strict):
    charge: int = 3


class Torch(Strict):
    lamp: Lamp = Lamp()
    battery: Battery | None = Battery()
    switch: bool = True


def refused(torch: Torch) -> list[tuple[str, Any, str, str]]:
    contexts = [(refusal.context or {}, refusal.message()) for refusal in refusals_in(torch)]
    return [(context["field"], context["value"], message, context["remedy"]) for context, message in contexts]


def test_what_is_lacking_is_refused_under_the_parts_own_name() -> None:
    assert refused(Torch()) == []
    assert refused(Torch(battery=Battery(charge=1))) == [("lamp", "set", "a lamp needs 2 and has 1", "charge it")]


def test_a_refusal_may_name_another_field_and_shows_its_value() -> None:
    assert refused(Torch(lamp=Lamp(brightness=9))) == [("lamp.brightness", 9, "a bright lamp needs 4", "dim it to 9")]


def test_nothing_is_required_of_a_table_that_is_absent_or_where_the_condition_is_off() -> None:
    assert refused(Torch(battery=None)) == []
    assert refused(Torch(lamp=Lamp(brightness=9), switch=False)) == []


@pytest.mark.parametrize("name", preset_names())
def test_the_parts_of_every_preset_are_found_by_their_paths(name: str) -> None:
    recipe = Recipe.model_validate(preset(name).recipe)
    found = dict(parts_in(recipe))
    assert {"credit", "objective", "mismatch"} <= set(found)
    assert ("kl" in found) == (recipe.kl is not None)
    assert ("selection.dynamic_sampling" in found) == (recipe.selection.dynamic_sampling is not None)


def every_part() -> Iterator[type[Part]]:
    waiting = [Part]
    while waiting:
        kinds = [kind for kind in waiting.pop().__subclasses__() if kind.__module__.startswith("engine.")]
        waiting += kinds
        yield from kinds


@pytest.mark.parametrize("part", sorted(every_part(), key=lambda part: part.__name__))
def test_a_requirement_looks_at_something_that_a_recipe_or_a_run_has(part: type[Part]) -> None:
    for requirement in part.requires:
        assert hasattr(Recipe, requirement.of.split(".")[0]) or requirement.of.split(".")[0] in Recipe.model_fields
    for requirement in part.requires_of_run:
        assert requirement.of.split(".")[0] in RunSpec.model_fields
