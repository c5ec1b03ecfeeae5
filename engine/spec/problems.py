"""Bad input, told so that its author can mend it: field, value, what is wrong, remedy."""

import difflib
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ValidationError


@dataclass(frozen=True)
class Problem:
    field: str
    """Dotted path, e.g. ``schedule.group_size``; empty for the document itself."""
    value: Any
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field or '(document)'} = {_short(self.value)}: {self.message}; {self.remedy}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def problems_in(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """One problem per complaint of pydantic, in its order."""
    return [_problem(details, model) for details in error.errors(include_url=False)]


def _problem(details: Any, model: type[BaseModel]) -> Problem:
    kind, context = details["type"], details.get("ctx", {})
    path = [str(part) for part in details["loc"]]
    value = details["input"]
    if kind in ("impossible_combination", "unknown_preset"):
        path += context["field"].split(".")
        value = context["value"]
    return Problem(
        field=".".join(path),
        value="(missing)" if kind == "missing" else value,
        message=details["msg"],
        remedy=context.get("remedy") or _remedy(kind, context, path, model),
    )


def _remedy(kind: str, context: dict[str, Any], path: list[str], model: type[BaseModel]) -> str:
    match kind:
        case "extra_forbidden":
            known = _fields_beside(path, model)
            near = difflib.get_close_matches(path[-1], known, n=1)
            return f"did you mean '{near[0]}'?" if near else f"remove it; known here: {', '.join(known) or 'nothing'}"
        case "missing":
            return "add it"
        case "literal_error" | "union_tag_invalid":
            return f"use one of: {context.get('expected') or context.get('expected_tags')}"
        case "union_tag_not_found":
            return f"add {context.get('discriminator', 'the tag')} to say which kind it is"
        case "string_pattern_mismatch":
            return "begin with a letter or digit; letters, digits, spaces and . : + - _ may follow"
        case _ if bound := [f"{word} {context[key]}" for key, word in _BOUNDS.items() if key in context]:
            return "use a value that is " + " and ".join(bound)
        case _:
            return f"give {_TYPES.get(kind, 'a value of the documented type')}"


_BOUNDS = {
    "ge": "at least",
    "gt": "greater than",
    "le": "at most",
    "lt": "less than",
    "min_length": "at least this long:",
    "max_length": "at most this long:",
}
_TYPES = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "model_type": "a table",
    "dict_type": "a table",
    "model_attributes_type": "a table",
}


def _fields_beside(path: list[str], model: type[BaseModel]) -> list[str]:
    """The names that are known where ``path`` ends, walking through nested models and unions."""
    candidates: list[type[BaseModel]] = [model]
    for part in path[:-1]:
        deeper = [
            inner
            for one in candidates
            if part in one.model_fields
            for inner in _models_of(one.model_fields[part].annotation)
        ]
        candidates = deeper or candidates  # a union's tag stands in the path but is no field
    return sorted({name for one in candidates for name in one.model_fields})


def _models_of(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_of(argument)]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
