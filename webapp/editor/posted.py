"""Reads the document that a posted form describes.  The form is that of ``fields.py``.

An unticked box posts nothing, so a box that is not in the form is off; a table that is off is
absent, whatever its hidden fields say.  Empty numbers and texts are absent where they may be, and
otherwise take what the preset or the schema has.
"""

from collections.abc import Mapping
from typing import Any

from django.http import QueryDict
from pydantic import BaseModel

from engine.spec.mixture import suited_vocabulary
from engine.spec.run import RunSpec
from webapp.experiments.baseline import baseline_of, beneath
from webapp.experiments.schema import Ask, asks_of, defaults_of

ON = "on"
_UNSAID: Any = object()


def document_in(form: QueryDict, base: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` is the document that the form was made for; it tells which tables have just changed their kind."""
    document = _table(RunSpec, "", form, base, baseline_of(base) if base else {})
    if _words(document) != _words(base) and isinstance(document.get("model"), dict):
        document["model"].pop("vocabulary", None)  # the other environment's words would be spelled
    recipe = base.get("recipe")
    if isinstance(recipe, Mapping) and recipe.get("preset"):
        document["recipe"] = {"preset": recipe["preset"], **document["recipe"]}
    return document


def _words(document: Mapping[str, Any]) -> tuple[Any, str]:
    """The environment's kind, and the words that suit it and its parts."""
    environment = document.get("environment")
    kind = environment.get("id") if isinstance(environment, Mapping) else None
    return kind, suited_vocabulary(environment)


def _table(
    model: type[BaseModel], path: str, form: QueryDict, base: Any, baseline: Mapping[str, Any]
) -> dict[str, Any]:
    """``baseline``: what the form showed where ``base`` says nothing."""
    known = base if isinstance(base, Mapping) else {}
    document = {}
    for name, ask in asks_of(model).items():
        inner = f"{path}.{name}" if path else name
        if inner == "recipe.preset":
            continue
        value = _answer(ask, inner, form, known.get(name), baseline.get(name))
        if value is not _UNSAID:
            document[name] = value
    return document


def _answer(ask: Ask, path: str, form: QueryDict, base: Any, unsaid: Any) -> Any:
    match ask.shape:
        case "fixed":
            return _UNSAID
        case "table" | "variant" if ask.may_be_absent and path not in form:
            return None
        case "table":
            return _table(ask.model, path, form, base, beneath(ask, base, unsaid))
        case "variant":
            return _variant(ask, path, form, base, unsaid)
        case "rows":
            return _rows(ask, path, form, base)
        case "flag":
            return path in form
        case "choices":
            return [_number(text) if ask.is_whole else text for text in form.getlist(path)]
        case "lines":
            return _lines(ask, path, form)
        case _:
            return _typed(ask, path, form)


def _variant(ask: Ask, path: str, form: QueryDict, base: Any, unsaid: Any) -> Any:
    """A table that was of another kind when the form was made begins with the defaults of its new one."""
    kind = form.get(f"{path}.{ask.tag}")
    if kind is None:
        return _UNSAID
    shown = base if isinstance(base, Mapping) else unsaid
    was = shown.get(ask.tag) if isinstance(shown, Mapping) else None
    if kind not in ask.models or (was is not None and was != kind):
        return {ask.tag: kind}
    return {ask.tag: kind} | _table(ask.models[kind], path, form, base, beneath(ask, {ask.tag: kind}, unsaid))


def _rows(ask: Ask, path: str, form: QueryDict, base: Any) -> list[dict[str, Any]]:
    """In their order; their numbers in the form need not be without gaps."""
    known = base if isinstance(base, list) else []
    after = len(path) + 1
    numbers = {name[after:].partition(".")[0] for name in form if name.startswith(path + ".")}
    indices = sorted(int(text) for text in numbers if text.isascii() and text.isdigit())
    return [
        _table(ask.model, f"{path}.{index}", form, known[index] if index < len(known) else None, defaults_of(ask.model))
        for index in indices
    ]


def _lines(ask: Ask, path: str, form: QueryDict) -> Any:
    if path not in form:
        return _UNSAID
    lines = [line.strip() for line in str(form[path]).splitlines() if line.strip()]
    return [_number(line) if ask.is_whole else line for line in lines]


def _typed(ask: Ask, path: str, form: QueryDict) -> Any:
    if path not in form:
        return _UNSAID
    text = str(form[path]).replace("\r\n", "\n").strip()
    if text:
        return _number(text) if ask.shape == "number" else text
    if ask.may_be_absent:
        return None
    return text if path == "name" else _UNSAID


def _number(text: str) -> Any:
    """Text that is a number, as that number; anything else as it is, for the spec to complain about."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def with_row(document: dict[str, Any], path: str) -> dict[str, Any]:
    """One more, empty row in the list at ``path``; the same document where there is no such list."""
    rows = list_at(document, path)
    longer: dict[str, Any] = document if rows is None else _put(document, path.split("."), [*rows, {}])
    return longer


def without_row(document: dict[str, Any], path: str, index: int) -> dict[str, Any]:
    rows = list_at(document, path)
    if rows is None:
        return document
    shorter: dict[str, Any] = _put(document, path.split("."), [*rows[:index], *rows[index + 1 :]])
    return shorter


def list_at(document: Any, path: str) -> list[Any] | None:
    """Return the list, None where none stands."""
    for name in path.split("."):
        if isinstance(document, list):
            document = document[int(name)] if name.isdecimal() and int(name) < len(document) else None
        else:
            document = document.get(name) if isinstance(document, Mapping) else None
    return document if isinstance(document, list) else None


def _put(document: Any, path: list[str], value: Any) -> Any:
    """``document`` with the value at a path whose tables and rows are there."""
    if not path:
        return value
    name, *rest = path
    if isinstance(document, list):
        return [_put(row, rest, value) if number == int(name) else row for number, row in enumerate(document)]
    return {**document, name: _put(document.get(name), rest, value)}
