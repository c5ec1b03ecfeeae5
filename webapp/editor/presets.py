"""The presets as a reader chooses among them: by family, each with its source and with what it changes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from engine.spec.presets import FAMILIES, Preset, preset, preset_names
from engine.spec.recipe import Recipe
from webapp.editor.fields import shown
from webapp.experiments.baseline import beneath, recipe_of_preset
from webapp.experiments.schema import asks_of, defaults_of

_NAMED = 3
"""So many changed settings are named before the list is opened."""


@dataclass(frozen=True)
class Change:
    path: str
    """It starts at the recipe, e.g. ``objective.clip_high``."""
    before: str
    after: str


@dataclass(frozen=True)
class PresetChoice:
    preset: Preset
    changes: tuple[Change, ...]
    """They are what differs from the recipe without a preset."""

    @property
    def summary(self) -> str:
        if not self.changes:
            return "Changes nothing: it is the base recipe"
        named = ", ".join(change.path for change in self.changes[:_NAMED])
        more = len(self.changes) - _NAMED
        return f"Changes {named}" + (f" and {more} more" if more > 0 else "")

    @property
    def words(self) -> str:
        """Return what a search looks in, in lower case."""
        changed = [f"{change.path} {change.after}" for change in self.changes]
        return " ".join((self.preset.name, self.preset.family, self.preset.about, self.preset.source, *changed)).lower()


@cache
def preset_families() -> list[tuple[str, list[PresetChoice]]]:
    """In the order of FAMILIES; inside of one in alphabetical order."""
    every = [PresetChoice(preset(name), preset_changes(name)) for name in preset_names()]
    return [(family, [choice for choice in every if choice.preset.family == family]) for family in FAMILIES]


def preset_or_none(name: str) -> Preset | None:
    return preset(name) if name in preset_names() else None


def preset_changes(name: str) -> tuple[Change, ...]:
    """Return how the preset's recipe differs from the recipe without one, in the order of the form."""
    return tuple(_changes(Recipe, "", recipe_of_preset(name), defaults_of(Recipe)))


def _changes(
    model: type[BaseModel], path: str, after: Mapping[str, Any], before: Mapping[str, Any]
) -> Iterator[Change]:
    for name, ask in asks_of(model).items():
        inner = f"{path}.{name}" if path else name
        new, old = after.get(name), before.get(name)
        if new == old or inner == "preset":
            continue
        if ask.shape not in ("table", "variant"):
            yield Change(inner, _value(old), _value(new))
        elif new is None:
            yield Change(inner, "on", "off")
        else:
            if old is None:
                yield Change(inner, "off", "on")
            if ask.tag and (old or {}).get(ask.tag) != new[ask.tag]:
                yield Change(f"{inner}.{ask.tag}", _value((old or {}).get(ask.tag)), _value(new[ask.tag]))
            yield from _changes(ask.model_for(new), inner, new, beneath(ask, new, old))


def _value(value: Any) -> str:
    """Tables in a list are counted, not told."""
    if isinstance(value, list) and any(isinstance(row, Mapping) for row in value):
        return f"{len(value)} entr{'y' if len(value) == 1 else 'ies'}"
    return shown(value)
