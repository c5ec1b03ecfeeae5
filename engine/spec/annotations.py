"""What the annotations of a model's fields say, for those who explain them: knobs, problems, the form."""

from typing import Any, get_args

from pydantic import BaseModel

BOUNDS_IN_WORDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that it names, however deep in unions and lists, in their order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]
