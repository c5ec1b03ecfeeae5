"""Writes a RunSpec as TOML, in the order of its fields, so that a person can read and edit it.

Reading is ``tomllib``'s.  What TOML has no word for (null) is left out.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(document: dict[str, Any]) -> str:
    return "\n".join(_table(document, ())).strip() + "\n"


def _table(table: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """The values of a table first, then its tables, as TOML demands."""
    values = {key: value for key, value in table.items() if not isinstance(value, dict) and value is not None}
    if path and (values or not table):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in values.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _table(value, (*path, key))


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
        case _:
            return repr(value)
