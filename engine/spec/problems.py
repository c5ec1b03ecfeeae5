"""Bad input, told so that its author can mend it: field, value, what is wrong, remedy."""

import difflib
import re
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from engine.spec.annotations import models_in


@dataclass(frozen=True)
class Problem:
    field: str
    """Dotted path, e.g. ``schedule.group_size``; empty for the document itself."""
    value: Any
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field or '(document)'} = {shown_value(self.value)}: {self.message}; {self.remedy}"

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def renamed(self, table: str, to: str) -> "Problem":
        """The same problem of the table ``to``, which is read as ``table`` is; its remedy names ``to`` as well."""
        if not self.field.startswith(f"{table}."):
            return self
        field = to + self.field.removeprefix(table)
        remedy = re.sub(rf"(?<![\w./-]){re.escape(table)}\.(?=[a-z])", lambda _: f"{to}.", self.remedy)
        return replace(self, field=field, remedy=remedy)


def problems_in(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """One problem per complaint of pydantic, in its order."""
    return [_problem(details, model) for details in error.errors(include_url=False)]


def _problem(details: Any, model: type[BaseModel]) -> Problem:
    kind, context = details["type"], details.get("ctx", {})
    tagged_path = [str(part) for part in details["loc"]]
    path = _without_tags(tagged_path, model)
    value = details["input"]
    if kind in ("impossible_combination", "unknown_preset"):
        path += [name for name in context["field"].split(".") if name]
        value = context["value"]
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        path = [*path, context["discriminator"].strip("'")]
        value = context.get("tag", "(missing)")
    return Problem(
        field=".".join(path),
        value="(missing)" if kind == "missing" else value,
        message=details["msg"],
        remedy=context.get("remedy") or _remedy(kind, context, tagged_path, model),
    )


def _remedy(kind: str, context: dict[str, Any], path: list[str], model: type[BaseModel]) -> str:
    match kind:
        case "extra_forbidden":
            known = _fields_beside(path, model)
            near = difflib.get_close_matches(path[-1], known, n=1)
            return f"did you mean '{near[0]}'?" if near else f"remove it; known here: {', '.join(known) or 'nothing'}"
        case "missing":
            return "add it"
        case "literal_error" | "enum" | "union_tag_invalid":
            return f"use one of: {context.get('expected') or context.get('expected_tags')}"
        case "union_tag_not_found":
            return f"add {context['discriminator']} to say which it is"
        case "string_pattern_mismatch" if path[-1] in _PATTERNS:
            return _PATTERNS[path[-1]]
        case "string_pattern_mismatch":
            return "begin with a letter or digit; letters, digits, spaces and . : + - _ may follow"
        case _ if bound := [f"{word} {context[key]}" for key, word in _BOUNDS.items() if key in context]:
            return "use a value that is " + " and ".join(bound)
        case _:
            return f"give {_TYPES.get(kind, 'a value of the documented type')}"


_PATTERNS = {
    "file": "give a relative path of plain names, e.g. runs/first.jsonl",
    "sha256": "give the 64 hexadecimal digits that `sha256sum FILE` prints",
    "endpoint": "give an http or https address without user and query, e.g. http://127.0.0.1:30000/v1",
    "hub": "give it as org/name",
    "catalog": "give it as name@version",
    "revision": "give a commit, a tag or a branch by its plain name",
    "run": "give a run's id, name or folder, without control characters",
    "api_key_variable": "give the name of a variable that begins with PALESTRA_JUDGE_",
}
"""What a text has to look like, by the name of its field."""

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


def _without_tags(path: list[str], model: type[BaseModel]) -> list[str]:
    """The path as the document has it.  Pydantic puts the tag of a union's variant behind the field."""
    plain: list[str] = []
    candidates: list[type[BaseModel]] = [model]
    for part in path:
        tagged = [candidate for candidate in candidates if part in _tags_of(candidate)]
        if tagged and len(candidates) > 1:
            candidates = tagged
            continue
        plain.append(part)
        candidates = _deeper(candidates, part) or candidates
    return plain


def _fields_beside(path: list[str], model: type[BaseModel]) -> list[str]:
    """The names that are known where ``path`` ends, walking through nested models and unions."""
    candidates: list[type[BaseModel]] = [model]
    for part in path[:-1]:
        tagged = [candidate for candidate in candidates if part in _tags_of(candidate)]
        candidates = tagged or _deeper(candidates, part) or candidates
    return sorted({name for candidate in candidates for name in candidate.model_fields})


def _deeper(candidates: list[type[BaseModel]], part: str) -> list[type[BaseModel]]:
    fields = [candidate.model_fields[part] for candidate in candidates if part in candidate.model_fields]
    return [inner for field in fields for inner in models_in(field.annotation)]


def _tags_of(model: type[BaseModel]) -> tuple[Any, ...]:
    """The values of ``kind`` or ``id`` by which a union recognises the model."""
    return tuple(tag for name in ("kind", "id") if name in model.model_fields for tag in _choices(model, name))


def _choices(model: type[BaseModel], name: str) -> tuple[Any, ...]:
    return getattr(model.model_fields[name].annotation, "__args__", ())


def shown_value(value: Any) -> str:
    """For people; cut where it is long."""
    try:
        text = repr(value)
    except RecursionError:
        return f"(a {type(value).__name__} nested too deeply)"
    return text if len(text) <= 80 else text[:77] + "..."
