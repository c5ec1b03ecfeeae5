"""Bad input, told so that its author can mend it: field, value, what is wrong, remedy."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from engine.spec.annotations import models_in, tables_in
from engine.spec.server_url import without_credentials


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

    def inside(self, document: str) -> "Problem":
        """The same problem where several documents are asked: its field begins with the name of this one."""
        return replace(self, field=f"{document}: {self.field}" if self.field else document)

    def renamed(self, table: str, to: str) -> "Problem":
        """The same problem of the table ``to``, which is read as ``table`` is; its remedy names ``to`` as well."""
        if not self.field.startswith(f"{table}."):
            return self
        field = to + self.field.removeprefix(table)
        remedy = re.sub(rf"(?<![\w./-]){re.escape(table)}\.(?=[a-z])", lambda _: f"{to}.", self.remedy)
        return replace(self, field=field, remedy=remedy)


def problems_in(
    error: ValidationError, model: type[BaseModel], *, document: type[BaseModel] | None = None
) -> list[Problem]:
    """One problem per complaint of pydantic, in its order; of combinations that are refused together one for each.

    ``document``: what was written, where ``model`` holds it in a field that its author knows nothing of.
    """
    complaints = error.errors(include_url=False)
    if document is not None:
        complaints = [details | {"loc": details["loc"][1:]} for details in complaints]
    return [problem for details in complaints for problem in _problems(details, document or model)]


def _problems(details: Any, model: type[BaseModel]) -> Iterator[Problem]:
    if details["type"] != "impossible_combinations":
        yield _problem(details, model)
        return
    for refusal in details["ctx"]["refusals"]:
        one = {"type": "impossible_combination", "ctx": refusal, "msg": refusal["problem"]}
        yield _problem(details | one, model)


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
    message = context.get("problem") or details["msg"]
    if isinstance(value, str):
        message = message.replace(value, shortened(value)) if len(value) > _LONGEST else message
        value = without_credentials(value) if "://" in value else value
    return Problem(
        field=".".join(shortened(part) for part in path),
        value="(missing)" if kind == "missing" else value,
        message=message,
        remedy=context.get("remedy") or _remedy(kind, context, tagged_path, model),
    )


def _remedy(kind: str, context: dict[str, Any], path: list[str], model: type[BaseModel]) -> str:
    match kind:
        case "extra_forbidden":
            return _remedy_of_unknown(path, model)
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


def _remedy_of_unknown(path: list[str], model: type[BaseModel]) -> str:
    """A name that is meant here, the places where the field belongs, or what is known here."""
    known = _fields_beside(path, model)
    family = [name for name in known if name.split("_")[0] == path[-1].split("_")[0]]
    near = difflib.get_close_matches(path[-1], family, n=1, cutoff=0.5) or difflib.get_close_matches(path[-1], known, 1)
    places = _places_of(path[-1], model)
    here = ".".join(_without_tags(path, model))
    if not places or here in places:  # where it is: a table of another kind has it
        return f"did you mean '{near[0]}'?" if near else f"remove it; known here: {', '.join(known) or 'nothing'}"
    tables = [f"{place.rpartition('.')[0] or 'the document'}: {place}" for place in places]
    belongs = f"it belongs to {', or to '.join(tables)}"
    return f"did you mean '{near[0]}'? If not, {belongs}" if near else f"remove it here; {belongs}"


def _places_of(name: str, model: type[BaseModel]) -> list[str]:
    """Where a document of ``model`` has a field of this name, outside of lists; nothing where those are many."""
    places: dict[str, None] = {}
    tables: list[tuple[str, type[BaseModel]]] = [("", model)]
    seen = set()
    for path, table in tables:  # it grows
        if (path, table) in seen or path.count(".") > _DEEPEST:
            continue
        seen.add((path, table))
        if name in table.model_fields:
            places[f"{path}{name}"] = None
        tables += [
            (f"{path}{field}.", inner)
            for field, info in table.model_fields.items()
            for inner in tables_in(info.annotation)
        ]
    return list(places) if len(places) <= _MOST_PLACES else []


_LONGEST = 80
"""Characters of a value that are shown, and of each name in a path."""
_DEEPEST = 3
"""Tables inside of which a field's place is looked for."""
_MOST_PLACES = 3
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
    return shortened(text)


def shortened(text: str) -> str:
    """A text that is long without its end."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
