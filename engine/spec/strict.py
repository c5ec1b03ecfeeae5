"""The one base class of everything that is published: unknown fields are errors; and how much is too much.

A number without an upper bound is a hang, an allocation that fails or a row that the database refuses, long after the
spec was taken.  The bounds leave room for whatever a run can really do.
"""

from typing import Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError

from engine.spec.annotations import members_of
from engine.spec.docstrings import descriptions_of

MOST_STEPS = 10**7
"""It bounds steps of any kind, because a step is a row of every curve."""
MOST_THINGS = 10**6
"""Demonstrations, rollouts, buffered trajectories: what is kept in memory."""
MOST_TASKS = 2**31 - 1
LONGEST_SCHEDULE = 10**15
"""Updates over which something rises or falls: so many that it stays what it is."""
LARGEST_NUMBER = 10**6
"""It bounds rewards and weights: beyond it 32-bit floats lose what they are added to."""
OUT_OF_REACH = 1e30
"""It bounds clips and bounds of ratios, which may be meant never to apply; still a 32-bit float."""


def _no_boolean(kind: Literal["int_type", "float_type"]) -> BeforeValidator:
    def check(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticKnownError(kind)
        return value

    return BeforeValidator(check)


_NO_BOOLEAN = {int: _no_boolean("int_type"), float: _no_boolean("float_type")}
"""By the type of a field: pydantic would take true for 1."""


class Strict(BaseModel):
    """Rejects unknown fields and true as a number, is frozen, and describes a field by the docstring under it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        for field in cls.__pydantic_fields__.values():
            kinds = members_of(field.annotation)
            number = next((number for number in (float, int) if number in kinds and bool not in kinds), None)
            if number is not None and _NO_BOOLEAN[number] not in field.metadata:
                field.metadata.append(_NO_BOOLEAN[number])
        return handler(source)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        document = handler(schema)
        properties = handler.resolve_ref_schema(document).get("properties", {})
        for name, text in descriptions_of(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return document
