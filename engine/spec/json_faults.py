"""What is wrong with a text that is no JSON, in words for whoever wrote it and never for whoever parses it."""

import json
from typing import Any, NoReturn

_IN_WORDS = {
    "Expecting value": "a value is missing or misspelt (a text stands in double quotes)",
    "Expecting property name enclosed in double quotes": "a name in double quotes is due",
    "Expecting ':' delimiter": "a colon is due",
    "Expecting ',' delimiter": "a comma or a closing bracket is due",
    "Extra data": "something follows behind its end",
    "Unterminated string starting at": "the text that begins there is never closed",
    "Invalid control character at": "a text holds a control character or a line break (write \\n)",
    "Invalid \\escape": "a backslash stands before a character that it cannot escape (write \\\\ for a backslash)",
    "Invalid \\uXXXX escape": "\\u is not followed by four hexadecimal digits",
    "Unexpected UTF-8 BOM (decode using utf-8-sig)": "a byte order mark stands before it",
}


def json_fault(error: ValueError) -> str:
    """What is wrong and where; errors that are not the parser's own are in words already."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)[:200]
    if error.pos >= len(error.doc.rstrip()):
        return "it ends before it is whole"
    words = _IN_WORDS.get(error.msg.removesuffix(": "), error.msg)
    line = f"line {error.lineno}, " if "\n" in error.doc else ""
    return f"{words}, at {line}character {error.colno}"


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An ``object_pairs_hook``.  Raises ValueError for a key that stands twice in one object."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return entries


def no_number(name: str) -> NoReturn:
    """A ``parse_constant``.  Raises ValueError for NaN and the infinities."""
    raise ValueError(f"{name} is no number of JSON")
