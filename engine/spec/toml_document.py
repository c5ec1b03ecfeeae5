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
LONGEST_WORD = 1000
"""Characters of a number, or of another word outside of quotes: Python refuses to read, or to show, a number of
thousands of digits."""
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
    for token in _TOKEN.finditer(text):
        if (fault := _fault_of(token["key"] or "")) is not None:
            message, remedy = fault
            line = text.count("\n", 0, token.start()) + 1
            raise BadToml(shortened(token["key"]), f"line {line}: {message}", remedy)
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise BadToml(text[:60], "this is no TOML that is read: it is nested too deeply", "nest it less") from error
    except ValueError as error:
        raise BadToml(text[:60], f"this is no TOML: {error}", "mend the line") from error


def _fault_of(key: str) -> tuple[str, str] | None:
    """What is too much of a key or value, and the remedy."""
    if len(key) <= MOST_PARTS:
        return None
    parts = _PARTS.findall(key)
    if len(parts) > MOST_PARTS:
        return f"a key of {len(parts)} parts, of which there may be {MOST_PARTS}", "name what has a shorter name"
    longest = max((len(part) for part in parts if part[0] not in "\"'"), default=0)
    if longest > LONGEST_WORD:
        return f"a number or word of {longest} characters, of which there may be {LONGEST_WORD}", "write a shorter one"
    return None
