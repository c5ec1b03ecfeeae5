"""Reads TOML that people write, of whom one may mean harm: bounded before ``tomllib`` sees it.

``tomllib`` takes time in the square of a key's parts: a key of 64,000 characters keeps it, and the interpreter's lock,
for twelve seconds.  To look for such a key takes time in proportion to the text.
"""

import re
import tomllib
from typing import Any

from engine.spec.problems import Problem, shortened

LONGEST_TEXT = 2**18
"""Characters of a document, unless its reader takes fewer or more."""
MOST_PARTS = 16
"""The parts of a dotted key."""
_PART = r"""(?:"(?:[^"\\\n]|\\[^\n])*+"?|'[^'\n]*+'?|[A-Za-z0-9_+-]++)"""
_TOKEN = re.compile(
    rf'''
    """ (?: [^"\\] | \\. | "(?!"") )*+ (?: "{{3,5}}+ )?  # texts of several lines
    | \'\'\' (?: [^'] | '(?!\'\') )*+ (?: '{{3,5}}+ )?
    | \#[^\n]*+
    | (?P<key> {_PART} (?: [ \t]*+ \. [ \t]*+ {_PART} )*+ )  # or a value, which has at most one dot
    ''',
    re.VERBOSE | re.DOTALL,
)
_PARTS = re.compile(_PART)


class BadToml(ValueError):
    """It is no TOML, or none that is read."""

    def __init__(self, value: Any, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self._value, self._message, self._remedy = value, message, remedy

    def problem(self, field: str) -> Problem:
        return Problem(field, self._value, self._message, self._remedy)


def toml_document(text: str, *, longest: int = LONGEST_TEXT) -> dict[str, Any]:
    """What a text says.  Raises BadToml, which names the line where there is one."""
    if len(text) > longest:
        raise BadToml(len(text), f"more than {longest} characters", "make it shorter")
    _check_keys(text)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a ValueError of any kind: a number of thousands of digits is one
        raise BadToml(text[:60], f"this is no TOML: {error}", "mend the line") from error


def _check_keys(text: str) -> None:
    """Raises BadToml at the first key that has too many parts."""
    for token in _TOKEN.finditer(text):
        key = token["key"] or ""
        if key.count(".") >= MOST_PARTS and (parts := len(_PARTS.findall(key))) > MOST_PARTS:
            line = text.count("\n", 0, token.start()) + 1
            message = f"line {line}: a key of {parts} parts, of which there may be {MOST_PARTS}"
            raise BadToml(shortened(key), message, "name what has a shorter name")
