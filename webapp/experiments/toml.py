"""Writes a RunSpec as TOML, in the order of its fields, so that a person can read and edit it.

Reading is ``tomllib``'s.  What TOML has no word for (null) is left out, or ``false`` where leaving it
out would mean something else.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from engine.spec.run import RunSpec
from webapp.experiments.baseline import baseline_of, beneath
from webapp.experiments.schema import asks_of

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(document: dict[str, Any]) -> str:
    return "\n".join(_table(_without_null(document, RunSpec, baseline_of(document)), ())).strip() + "\n"


def _without_null(table: Mapping[str, Any], model: type[BaseModel], baseline: Mapping[str, Any]) -> dict[str, Any]:
    asks = asks_of(model)
    kept: dict[str, Any] = {}
    for name, value in table.items():
        ask, unsaid = asks.get(name), baseline.get(name)
        if value is None:
            if ask is not None and ask.may_be_absent and unsaid is not None:
                kept[name] = False
        elif ask is not None and ask.models and isinstance(value, dict):
            kept[name] = _without_null(value, ask.model_for(value), beneath(ask, value, unsaid))
        else:
            kept[name] = value
    return kept


def _table(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The values of a table first, then its tables, as TOML demands."""
    values = {key: value for key, value in table.items() if not isinstance(value, dict) and not _is_rows(value)}
    if path and (values or not table):
        yield f"\n[{_header(path)}]"
    yield from _lines(values)
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _table(value, (*path, key))
        elif _is_rows(value):
            for row in value:
                yield f"\n[[{_header((*path, key))}]]"
                yield from _lines(row)


def _lines(values: dict[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_value(value)}" for key, value in values.items() if value is not None)


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _header(path: tuple[str, ...]) -> str:
    return ".".join(map(_key, path))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            inner = (f"{_key(key)} = {_value(one)}" for key, one in value.items() if one is not None)
            return f"{{{', '.join(inner)}}}"
        case _:
            return repr(value)
