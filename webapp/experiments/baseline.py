"""What a document means where it says nothing: the defaults, and its preset's recipe."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from engine.spec.presets import preset_names
from engine.spec.recipe import Recipe
from engine.spec.run import RunSpec
from webapp.experiments.schema import Ask, asks_of, defaults_of


def baseline_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec as JSON has it.  A preset that is not known counts as none."""
    baseline = defaults_of(RunSpec)
    if preset := preset_in(document):
        baseline["recipe"] = recipe_of_preset(preset)
    return baseline


def preset_in(document: Mapping[str, Any]) -> str:
    """The name of the known preset that the recipe started from, or empty text."""
    recipe = document.get("recipe")
    name = recipe.get("preset") if isinstance(recipe, Mapping) else None
    return name if isinstance(name, str) and name in preset_names() else ""


def recipe_of_preset(name: str) -> dict[str, Any]:
    """The whole recipe; that of no preset where the preset needs more to be valid."""
    try:
        return Recipe.model_validate({"preset": name}).model_dump(mode="json")
    except ValidationError:
        return defaults_of(Recipe)


def beneath(ask: Ask, value: Any, baseline: Any) -> dict[str, Any]:
    """Return what is left unsaid in the table ``value``: the baseline's table if that is of its kind, else defaults."""
    model = ask.model_for(value)
    if isinstance(baseline, dict) and ask.model_for(baseline) is model:
        return baseline
    return defaults_of(model)


def brief(spec: RunSpec) -> dict[str, Any]:
    """The shortest document that is this spec: without what it need not say."""
    document = spec.model_dump(mode="json")
    kept = _brief(RunSpec, document, baseline_of(document))
    if preset := document["recipe"]["preset"]:
        kept["recipe"] = {"preset": preset, **kept.get("recipe", {})}
    return {"name": spec.name, **kept}


def _brief(model: type[BaseModel], table: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, ask in asks_of(model).items():
        value, unsaid = table[name], baseline.get(name)
        if value == unsaid:
            continue
        if ask.shape in ("table", "variant") and isinstance(value, dict):
            inner = _brief(ask.model_for(value), value, beneath(ask, value, unsaid))
            kept[name] = ({ask.tag: value[ask.tag]} if ask.tag else {}) | inner
        else:
            kept[name] = value
    return kept
