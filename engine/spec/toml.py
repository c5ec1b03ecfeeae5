"""Writes a document as TOML, in its order, so that a person can read and edit it; ``tomllib`` reads it.

TOML has no word for null: what is None is left out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_of(document: Mapping[str, Any]) -> str:
    """Of dicts, lists, texts, numbers and truths, as JSON has them."""
    return "\n".join(_table(document, ())).strip() + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
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


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
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
