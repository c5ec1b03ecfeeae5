"""What the annotations of a model's fields say, for those who explain them: knobs, problems, the form."""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

BOUNDS_IN_WORDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that it names, however deep in unions and lists, in their order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def tables_in(annotation: Any) -> list[type[BaseModel]]:
    """The models of which a value may be one itself: those of a union's members, none inside of a list."""
    return [member for member in members_of(annotation) if isinstance(member, type) and issubclass(member, BaseModel)]


def members_of(annotation: Any) -> list[Any]:
    """The types of which a value may be: of a union those of its members, in their order, else the one."""
    if get_origin(annotation) in (Union, UnionType):
        return [inner for member in get_args(annotation) for inner in members_of(member)]
    return members_of(get_args(annotation)[0]) if get_origin(annotation) is Annotated else [annotation]
