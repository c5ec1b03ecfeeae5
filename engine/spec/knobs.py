"""Every knob of a recipe, read off its models: path, value, default, range, what it does.

One walk serves the command line, the REST answer and the reference, so that none of them can fall behind.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from engine.spec.annotations import BOUNDS_IN_WORDS, models_in
from engine.spec.docstrings import descriptions_of
from engine.spec.presets import Preset
from engine.spec.recipe import Recipe


@dataclass(frozen=True)
class Knob:
    path: str
    """It starts at the recipe, e.g. ``objective.clip_high``."""
    value: Any
    """What the preset makes of it."""
    default: Any
    """Without a preset; None also where a value has to be given."""
    range: str
    """It says in words: ``at least 0, less than 1``, ``one of: a, b``, ``true or false``."""
    is_set: bool
    """Whether the preset's file gives it."""
    help: str
    """What it does, with its source."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def knobs_of(preset: Preset) -> list[Knob]:
    """In the order of the models; a part that the preset leaves out is one knob whose value is None."""
    return list(_knobs(Recipe.model_validate({"preset": preset.name}), "", preset.recipe, [Recipe]))


def _knobs(model: BaseModel, prefix: str, given: Any, variants: list[type[BaseModel]]) -> Iterator[Knob]:
    """``variants`` are the models that may stand where ``model`` stands."""
    for name, info in type(model).model_fields.items():
        path, value = prefix + name, getattr(model, name)
        if path == "preset":
            continue
        inner = given.get(name) if isinstance(given, dict) else None
        is_set = isinstance(given, dict) and name in given
        if isinstance(value, BaseModel):
            yield from _knobs(value, path + ".", inner, models_in(info.annotation))
        else:
            allowed = _kinds(variants) if name == "kind" else _range(info)
            yield Knob(path, _plain(value), _plain(_default(info)), allowed, is_set, _help(model, name))


def _help(model: BaseModel, name: str) -> str:
    """The tag of a variant is explained by the variant itself."""
    text = model.__doc__ if name == "kind" else descriptions_of(type(model)).get(name)
    return " ".join((text or "").split())


def _default(info: FieldInfo) -> Any:
    default = info.get_default(call_default_factory=True)
    return None if default is PydanticUndefined else default


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _kinds(variants: list[type[BaseModel]]) -> str:
    return f"one of: {', '.join(str(variant.model_fields['kind'].default) for variant in variants)}"


def _range(info: FieldInfo) -> str:
    bounds = [
        f"{word} {getattr(rule, key)}"
        for key, word in BOUNDS_IN_WORDS.items()
        for rule in info.metadata
        if hasattr(rule, key)
    ]
    parts = [", ".join(bounds) or _type_in_words(info.annotation)]
    if NoneType in get_args(info.annotation):
        parts.append("or absent")
    return " ".join(part for part in parts if part)


def _type_in_words(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        return _type_in_words(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        tables = models_in(annotation)
        if len(tables) > 1:
            return f"a table of kind {' or '.join(str(table.model_fields['kind'].default) for table in tables)}"
        return " or ".join(filter(None, (_type_in_words(arg) for arg in get_args(annotation) if arg is not NoneType)))
    if get_origin(annotation) is Literal:
        return f"one of: {', '.join(map(str, get_args(annotation)))}"
    if get_origin(annotation) in (list, tuple):
        return f"a list, each {_type_in_words(get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a table"
    return {bool: "true or false", int: "any whole number", float: "any number", str: "a text"}.get(annotation, "")
