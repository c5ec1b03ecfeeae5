"""A combination that cannot work, refused with its remedy."""

from pydantic_core import PydanticCustomError


def impossible(field: str, value: object, problem: str, remedy: str) -> PydanticCustomError:
    """``field`` is the path from the model that raises it; empty where a field's own validator does."""
    return PydanticCustomError(
        "impossible_combination", "{problem}", {"field": field, "value": value, "problem": problem, "remedy": remedy}
    )
