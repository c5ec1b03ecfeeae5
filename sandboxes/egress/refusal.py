"""A policy that is refused says which field, which value, what is wrong and what to do instead."""

from pydantic_core import PydanticCustomError


def refused(field: str, value: object, problem: str, remedy: str) -> PydanticCustomError:
    """``field`` is the path from the model that raises it.

    The type is the one that the published language uses for its own, so that both are shown alike.
    """
    return PydanticCustomError(
        "impossible_combination", "{problem}", {"field": field, "value": value, "problem": problem, "remedy": remedy}
    )
