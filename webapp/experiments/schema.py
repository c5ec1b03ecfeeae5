"""What each field of the spec asks for, read from its annotation: the one place that knows pydantic's shapes."""

import types
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from engine.spec.annotations import models_in

Shape = Literal["fixed", "table", "variant", "rows", "flag", "number", "text", "choice", "choices", "lines"]
"""``fixed`` has one possible value, so there is nothing to ask; ``variant`` is a table of one of several kinds,
``rows`` a list of tables, ``choices`` a list of some of a few values, ``lines`` a list of any texts."""

TAGS = ("kind", "id")
"""The names by which a table of several kinds says which it is."""


@dataclass(frozen=True)
class Ask:
    shape: Shape
    may_be_absent: bool = False
    """It is True where None is a value of its own."""
    models: dict[str, type[BaseModel]] = field(default_factory=dict)
    """The models of a variant by tag; the one of a table or of rows under the empty name."""
    tag: str = ""
    choices: tuple[str, ...] = ()
    is_whole: bool = False
    bounds: dict[str, Any] = field(default_factory=dict)
    """``ge``, ``gt``, ``le``, ``lt``, ``max_length``, where given."""

    @property
    def model(self) -> type[BaseModel]:
        """The model of a table or of rows; of a variant the first one, for documents that name none."""
        return next(iter(self.models.values()))

    def model_for(self, value: Any) -> type[BaseModel]:
        """The one that the value says it is."""
        named = value.get(self.tag) if isinstance(value, dict) else None
        return self.models.get(str(named), self.model)


@cache
def asks_of(model: type[BaseModel]) -> dict[str, Ask]:
    return {name: _ask(info) for name, info in model.model_fields.items()}


def default_of(info: FieldInfo) -> Any:
    """Return the default as JSON has it; None also for a field that must be given."""
    default = info.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return None
    if isinstance(default, BaseModel):
        return default.model_dump(mode="json")
    if isinstance(default, tuple):
        return [item.model_dump(mode="json") if isinstance(item, BaseModel) else item for item in default]
    return default


def defaults_of(model: type[BaseModel]) -> dict[str, Any]:
    return {name: default_of(info) for name, info in model.model_fields.items()}


def _ask(info: FieldInfo) -> Ask:
    annotation, rules = _plain(info.annotation)
    rules = [*info.metadata, *rules]
    may_be_absent = type(None) in get_args(info.annotation)
    if get_origin(annotation) in (list, tuple):
        return _ask_for_list(get_args(annotation)[0], may_be_absent)
    variants = models_in(annotation)
    models = [model for model in variants if not getattr(model, "command_line_only", False)]
    if len(variants) == len(models) == 1:
        return Ask("table", may_be_absent, {"": models[0]})
    if models:
        tag = next(name for name in TAGS if all(name in model.model_fields for model in models))
        return Ask("variant", may_be_absent, {str(model.model_fields[tag].default): model for model in models}, tag)
    if get_origin(annotation) is Literal:
        choices = tuple(map(str, get_args(annotation)))
        return Ask("choice" if len(choices) > 1 or may_be_absent else "fixed", may_be_absent, choices=choices)
    shape: Shape = "flag" if annotation is bool else "number" if annotation in (int, float) else "text"
    return Ask(shape, may_be_absent, is_whole=annotation is int, bounds=_bounds(rules))


def _ask_for_list(inner: Any, may_be_absent: bool) -> Ask:
    annotation, rules = _plain(inner)
    if models := models_in(annotation):
        return Ask("rows", may_be_absent, {"": models[0]})
    if get_origin(annotation) is Literal:
        return Ask("choices", may_be_absent, choices=tuple(map(str, get_args(annotation))))
    if str in (annotation, *get_args(annotation)):
        return Ask("lines", may_be_absent, is_whole=int in get_args(annotation))
    bounds = _bounds(rules)
    choices = tuple(str(number) for number in range(bounds["ge"], bounds["le"] + 1))
    return Ask("choices", may_be_absent, choices=choices, is_whole=annotation is int)


def _plain(annotation: Any) -> tuple[Any, list[Any]]:
    """Without ``None`` and ``Annotated``, and the rules that stood there."""
    rules: list[Any] = []
    if get_origin(annotation) in (Union, types.UnionType):
        left = [choice for choice in get_args(annotation) if choice is not type(None)]
        annotation = left[0] if len(left) == 1 else annotation
    if get_origin(annotation) is Annotated:
        annotation, *rules = get_args(annotation)
    return annotation, rules


def _bounds(rules: list[Any]) -> dict[str, Any]:
    names = ("ge", "gt", "le", "lt", "max_length")
    flat = [part for rule in rules for part in (rule, *getattr(rule, "metadata", ()))]
    found = {name: getattr(rule, name) for rule in flat for name in names if getattr(rule, name, None) is not None}
    return {name: value for name, value in found.items() if name == "max_length" or not isinstance(value, str)}
