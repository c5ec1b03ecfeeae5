"""What all endpoints have in common, for the OpenAPI document: errors, ``Idempotency-Key``, scopes."""

from typing import Any

from ninja import Schema
from pydantic import Field

ABOUT = """Send an API key as `Authorization: Bearer pal_...`.  Every GET needs its scope `read`, review decisions and
acknowledgements `review`, every other POST, PUT or DELETE `launch`; roles in the team count besides.  What is not
there and what is somebody else's are both 404.  A query that an address does not take is 422.  Every error is
`application/problem+json`."""

STATUSES = {
    "401": "No valid key, and nobody signed in",
    "403": "A scope or a role that does not suffice",
    "404": "Not there, or not yours",
    "409": "Not possible in the state that it is in, or an `Idempotency-Key` that was used for another request",
    "422": "Values that cannot be used",
}


class ProblemField(Schema):
    field: str = Field(description="Dotted path, e.g. schedule.group_size; empty for the document itself")
    value: Any = None
    message: str
    remedy: str


class ProblemOut(Schema):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    problems: list[ProblemField] = Field(default=[], description="Left out where no single value is at fault")


IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key and request within a day act once and answer the same",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
}


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the errors of every operation, and with the key that every POST takes."""
    reference = "#/components/schemas/{model}"
    described = ProblemOut.model_json_schema(ref_template=reference)
    document["components"]["schemas"] |= described.pop("$defs") | {"ProblemOut": described}
    content = {"application/problem+json": {"schema": {"$ref": reference.format(model="ProblemOut")}}}
    for operations in document["paths"].values():
        for method, operation in operations.items():
            operation["responses"] |= {
                status: {"description": meaning, "content": content}
                for status, meaning in STATUSES.items()
                if status != "409" or method != "get"
            }
            if method == "post":
                operation["parameters"] = [*operation.get("parameters", []), IDEMPOTENCY_KEY]
    return document
