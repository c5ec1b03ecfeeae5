"""A team's environments as documents: reading one, comparing two, and who begins with one.

Page, REST and ``manage.py publish_environment`` call this module, and ``services.publish_environment``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, ValidationError

from engine.spec.environment import Environment as EnvironmentSpec
from engine.spec.problems import problems_in
from engine.spec.strict import Strict
from engine.spec.toml import toml_of
from engine.spec.toml_document import BadToml, toml_document
from webapp.catalog.models import Environment
from webapp.foreign_code import refuse_code_to_import
from webapp.refusals import Invalid

ABSENT = "(absent)"


class Described(Strict):
    """An environment as it stands in a run's spec."""

    environment: Annotated[EnvironmentSpec, Field(discriminator="id")]


@dataclass(frozen=True)
class ChangedField:
    """A field that two versions say differently; a version that does not have it says ``(absent)``."""

    field: str
    before: Any
    after: Any


def environment_of_text(text: str) -> EnvironmentSpec:
    """The environment that a TOML document describes, under ``[environment]``.  Raises Invalid with every problem."""
    try:
        document = toml_document(text)
    except BadToml as bad:
        raise Invalid("the environment cannot be read", [bad.problem("environment")]) from bad
    return environment_of(document)


def environment_of(document: dict[str, Any]) -> EnvironmentSpec:
    """Raises Invalid with every problem: of a document, or because the service would not run it."""
    try:
        environment = Described.model_validate(document).environment
    except ValidationError as error:
        raise Invalid("the environment cannot be used", problems_in(error, Described)) from error
    refuse_code_to_import(environment)
    return environment


def readable(stored: dict[str, Any]) -> EnvironmentSpec | None:
    """The environment that a version holds; None where it is of a form that is read no more."""
    try:
        return Described.model_validate({"environment": stored}).environment
    except ValidationError:
        return None


def text_of(document: dict[str, Any]) -> str:
    """A version as a run's TOML has it."""
    return toml_of({"environment": document})


def changed_fields(before: Environment, after: Environment) -> list[ChangedField]:
    """In the order of their names."""
    old, new = dict(_fields_of(before.spec)), dict(_fields_of(after.spec))
    return [
        ChangedField(field, old.get(field, ABSENT), new.get(field, ABSENT))
        for field in sorted(old.keys() | new.keys())
        if old.get(field, ABSENT) != new.get(field, ABSENT)
    ]


def _fields_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value that holds no other one, by its dotted path."""
    parts: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not parts or not value:
        yield path, value
    for name, inner in parts:
        yield from _fields_of(inner, f"{path}.{name}" if path else str(name))
