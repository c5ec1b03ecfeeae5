"""What a part of a recipe requires of the others.  Each part says it beside its fields; here it is looked after.

A refusal names a field, its value, the reason and the remedy, and is the same in the form, over REST and in a file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel
from pydantic_core import PydanticCustomError

from engine.spec.impossible import impossible
from engine.spec.strict import Strict

Holds = Callable[[Any, Any], bool]
"""Whether a value is right, given the part that requires it."""


@dataclass(frozen=True)
class Requirement:
    """``of`` is the path of a value, from the recipe (``objective.kind``) or from the run (``schedule.group_size``).

    A value whose table is absent is not looked at.  In ``problem`` and ``remedy``, ``{value}`` is what was found,
    ``{kind}`` the kind of the part.
    """

    of: str
    holds: Holds
    problem: str
    remedy: str
    field: str | None = None
    """The path that the refusal names; absent: that of the part itself."""
    when: Callable[[Any], bool] = lambda part: True
    """Whether the part requires it at all."""
    given: str | None = None
    """The path of something without which nothing is required."""


Requirements = tuple[Requirement, ...]


class Part(Strict):
    """A table of a recipe, with what it requires of the rest of the recipe and of the rest of the run."""

    requires: ClassVar[Requirements] = ()
    requires_of_run: ClassVar[Requirements] = ()
    one_segment: ClassVar[str | None] = None
    """Why it works on trajectories of one segment only; None: on all.  What can be known before a start is refused
    there; a trajectory that turns out to have several is masked."""


def one_of(*values: object) -> Holds:
    return lambda value, part: value in values


def none_of(*values: object) -> Holds:
    return lambda value, part: value not in values


def present(value: Any, part: Any) -> bool:
    return value is not None


def absent(value: Any, part: Any) -> bool:
    return value is None


def positive(value: Any, part: Any) -> bool:
    return bool(value > 0)


def at_least(number: float) -> Holds:
    return lambda value, part: value >= number


def needs_observations(what: str, *, field: str) -> Requirement:
    """What learns from observations needs episodes of more than one turn."""
    return Requirement(
        "environment.max_turns",
        at_least(2),
        f"{what} needs observations, and with environment.max_turns = 1 none ever comes",
        "use environment.max_turns of at least 2",
        field=field,
    )


def refusals_in(recipe: BaseModel) -> Iterator[PydanticCustomError]:
    """Yield what parts of a recipe require of each other and do not have, in the order of the fields."""
    for path, part in parts_in(recipe):
        yield from _refusals(recipe, path, part, part.requires)


def refusals_beside(run: BaseModel, recipe: BaseModel) -> Iterator[PydanticCustomError]:
    """Yield what parts of a run's recipe require of the rest of the run and do not have."""
    for path, part in parts_in(recipe):
        yield from _refusals(run, f"recipe.{path}", part, part.requires_of_run)


def needing_one_segment(recipe: BaseModel) -> list[tuple[str, str]]:
    """The path and the reason of each part of a recipe that works on trajectories of one segment only."""
    return [(path, part.one_segment) for path, part in parts_in(recipe) if part.one_segment is not None]


def parts_in(table: BaseModel, above: str = "") -> Iterator[tuple[str, Part]]:
    """Every part with its path, those inside of others right after them."""
    for name in type(table).model_fields:
        value = getattr(table, name)
        if isinstance(value, Part):
            yield f"{above}{name}", value
        if isinstance(value, BaseModel):
            yield from parts_in(value, f"{above}{name}.")


def _refusals(
    document: BaseModel, path: str, part: Part, requirements: tuple[Requirement, ...]
) -> Iterator[PydanticCustomError]:
    for requirement in requirements:
        *tables, name = requirement.of.split(".")
        table = _at(document, tables)
        if table is None or not requirement.when(part):
            continue
        if requirement.given is not None and not _at(document, requirement.given.split(".")):
            continue
        value = getattr(table, name, None)
        if requirement.holds(value, part):
            continue
        words = {"value": value, "kind": getattr(part, "kind", path), "part": part}
        field = requirement.field or path
        named = _at(document, field.split("."))
        yield impossible(
            field,
            "set" if _is_large(named) else value if named is None else named,
            requirement.problem.format(**words),
            requirement.remedy.format(**words),
        )


def _at(document: BaseModel, path: list[str]) -> Any:
    """The value at a path; None where a table on the way is absent."""
    value: Any = document
    for name in path:
        value = getattr(value, name, None)
    return value


def _is_large(named: Any) -> bool:
    """Whether it is a part of its own, or a list of such, which a line of an error should not quote."""
    return isinstance(named, BaseModel) or (isinstance(named, tuple) and any(map(_is_large, named)))
