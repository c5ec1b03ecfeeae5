"""The spec editor's fields, made from the schema: a new field of RunSpec is in the form by itself.

Labels, help, ranges and defaults are those of ``engine.spec``; this module only knows how to ask.
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from engine.spec.problems import Problem
from engine.spec.run import RunSpec

GROUPS = {
    "": "General",
    "environment": "Environment",
    "dataset": "Data",
    "model": "Model",
    "recipe": "Recipe",
    "schedule": "Schedule",
    "evaluation": "Evaluation",
    "resources": "Resources",
}
_MAIN = {
    "": {"name", "seed"},
    "environment": {"levels", "max_turns", "max_turn_tokens"},
    "dataset": {"train_tasks", "heldout_tasks"},
    "model": {"layers", "hidden_size", "heads", "context_tokens"},
    "recipe.credit": {"kind"},
    "recipe.objective": {"clip_low", "clip_high"},
    "recipe.optimizer": {"learning_rate"},
    "recipe.cold_start": {"steps", "wrong_fraction"},
    "schedule": {
        "steps", "prompts_per_step", "group_size", "minibatch_trajectories", "temperature", "checkpoint_every",
    },
    "evaluation": {"every", "tasks", "interim_tasks"},
    "resources": {"device", "threads", "kv_slots"},
}  # fmt: skip
"""Always in sight; every other field is behind "More"."""

Kind = Literal["number", "text", "choice", "many"]


@dataclass(frozen=True)
class Field:
    path: str
    label: str
    kind: Kind
    help: str
    value: Any
    """As given: text of a form, or a value of a document."""
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: Any = None
    maximum: Any = None
    is_whole: bool = False
    problem: Problem | None = None

    @property
    def id(self) -> str:
        return "f-" + self.path.replace(".", "-")

    @property
    def is_main(self) -> bool:
        table, _, name = self.path.rpartition(".")
        return name in _MAIN.get(table, ())

    @property
    def is_changed(self) -> bool:
        return self.default is not None and _text(self.value) != _text(self.default)

    @property
    def text(self) -> str:
        return "" if self.value is None else str(self.value)

    @property
    def chosen(self) -> list[str]:
        return [str(one) for one in self.value] if isinstance(self.value, list) else []

    @property
    def range(self) -> str:
        low, high = self.minimum, self.maximum
        if low is None and high is None:
            return ""
        return (
            f"{low} to {high}"
            if None not in (low, high)
            else (f"at least {low}" if high is None else f"at most {high}")
        )


@dataclass(frozen=True)
class Group:
    name: str
    title: str
    main: list[Field]
    more: list[Field]

    @property
    def opens_more(self) -> bool:
        """Something is wrong in there, so it must be seen."""
        return any(field.problem for field in self.more)


def groups_of(document: Mapping[str, Any], problems: list[Problem]) -> list[Group]:
    """The whole form for a document that need not be valid."""
    by_path = {problem.field: problem for problem in reversed(problems)}
    fields = list(_fields(RunSpec, "", document, by_path))
    groups = []
    for name, title in GROUPS.items():
        own = [field for field in fields if field.path.rpartition(".")[0].split(".")[0] == name]
        groups.append(Group(name, title, [one for one in own if one.is_main], [one for one in own if not one.is_main]))
    return groups


def _fields(model: type[BaseModel], prefix: str, document: Any, problems: Mapping[str, Problem]) -> Iterator[Field]:
    given = document if isinstance(document, Mapping) else {}
    for name, info in model.model_fields.items():
        path, value = prefix + name, given.get(name, _default(info))
        models = _models_in(info.annotation)
        if len(models) > 1:
            yield from _variant(models, path, value, info, problems)
        elif models:
            yield from _fields(models[0], path + ".", value, problems)
        elif path != "recipe.preset" and (field := _field(path, name, info, value, problems)):
            yield field


def _variant(
    models: list[type[BaseModel]], path: str, value: Any, info: FieldInfo, problems: Mapping[str, Problem]
) -> Iterator[Field]:
    """A choice between models by their ``kind``, then the fields of the chosen one."""
    by_kind = {str(model.model_fields["kind"].default): model for model in models}
    kind = value.get("kind") if isinstance(value, Mapping) else None
    default = _default(info)
    about = " ".join(f"{name}: {model.__doc__}" for name, model in by_kind.items() if name == kind)
    yield Field(
        path=path + ".kind", label=_label(path), kind="choice", help=about or info.description or "", value=kind,
        default=default.get("kind") if isinstance(default, Mapping) else None, choices=tuple(by_kind),
        problem=problems.get(path) or problems.get(path + ".kind"),
    )  # fmt: skip
    yield from _fields(by_kind.get(str(kind), models[0]), path + ".", value, problems)


def _field(path: str, name: str, info: FieldInfo, value: Any, problems: Mapping[str, Problem]) -> Field | None:
    """None for a field with one possible value: there is nothing to ask."""
    annotation = _without_none(info.annotation)
    literals = tuple(str(one) for one in get_args(annotation)) if get_origin(annotation) is Literal else ()
    if len(literals) == 1 or name == "kind":
        return None
    is_list = get_origin(annotation) is list
    bounds = _bounds(get_args(get_args(annotation)[0])[1] if is_list else info)
    choices = tuple(str(one) for one in range(bounds["ge"], bounds["le"] + 1)) if is_list else literals
    problem = problems.get(path) or next(
        (one for at, one in problems.items() if is_list and at.startswith(path + ".")), None
    )
    return Field(
        path=path,
        label=_label(path),
        kind="many" if is_list else "choice" if literals else "number" if annotation in (int, float) else "text",
        help=info.description or "",
        value=value,
        default=_default(info),
        choices=choices,
        minimum=bounds.get("ge", bounds.get("gt")),
        maximum=bounds.get("le"),
        is_whole=annotation is int,
        problem=problem,
    )


def _bounds(info: FieldInfo) -> dict[str, Any]:
    names = ("ge", "gt", "le", "lt")
    return {
        name: getattr(rule, name) for rule in info.metadata for name in names if getattr(rule, name, None) is not None
    }


def _default(info: FieldInfo) -> Any:
    default = info.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return None
    return default.model_dump(mode="json") if isinstance(default, BaseModel) else default


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        left = [one for one in get_args(annotation) if one is not type(None)]
        return left[0] if len(left) == 1 else annotation
    return annotation


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, Annotated):
        return [model for one in get_args(annotation) for model in _models_in(one)]
    return []


_UNITS = {"s": "seconds", "mib": "MiB", "bytes": "bytes"}


def _label(path: str) -> str:
    """``schedule.stall_timeout_s`` -> "Stall timeout, seconds"; the parent's name goes in front where it says more."""
    parts = path.split(".")
    words = parts[-1].split("_")
    unit = _UNITS.get(words[-1]) if len(words) > 1 else None
    text = " ".join(words[:-1] if unit else words)
    if len(parts) > 2:
        text = f"{parts[-2].replace('_', ' ')}: {text}"
    return text[:1].upper() + text[1:] + (f", {unit}" if unit else "")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    try:
        return repr(float(value))
    except (TypeError, ValueError):
        return "" if value is None else str(value)


_NOT_OF_THE_SPEC = frozenset({"action", "as", "toml", "team", "preset", "csrfmiddlewaretoken", "base"})


def document_in(form: Any, base: Mapping[str, Any]) -> dict[str, Any]:
    """The document that a posted form describes.

    Empty numbers take their default; ``base`` keeps what no field asks.
    """
    document: dict[str, Any] = {}
    if preset := (base.get("recipe") or {}).get("preset"):
        _put(document, "recipe.preset", preset)
    for path in form:
        if path in _NOT_OF_THE_SPEC:
            continue
        value = form.getlist(path) if path.endswith(".levels") else form[path].strip()
        if value != "" or path == "name":
            _put(document, path, value)
    for field in list(_fields(RunSpec, "", document, {})):
        if field.path in form and field.kind in ("number", "many") and field.text:
            _put(document, field.path, _numbers(field.value))
    return document


def _numbers(value: Any) -> Any:
    """Text that is a number, as that number; anything else as it is, for the spec to complain about."""
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    for read in (int, float):
        try:
            return read(value)
        except (TypeError, ValueError):
            continue
    return value


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        inner = document.setdefault(parent, {})
        document = inner if isinstance(inner, dict) else {}
    document[name] = value
