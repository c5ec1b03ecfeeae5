"""What a document may hold so that a row can keep it, whatever its schema thinks of it."""

import reprlib
from collections.abc import Iterator
from datetime import date, time
from typing import Any

from engine.spec.problems import Problem

MOST_LEVELS = 32
LARGEST = 2**63 - 1
"""What 64 bits hold."""


def unstorable(document: Any) -> Iterator[Problem]:
    """Yield what is wrong with a document as JSON or TOML was read.  Nothing below the levels is looked at."""
    places: list[tuple[tuple[str, ...], Any]] = [((), document)]
    while places:
        path, value = places.pop()
        if complaint := _complaint(value, len(path)):
            shown = reprlib.repr(value) if isinstance(value, dict | list) else value  # repr of all levels may fail
            yield Problem(".".join(path), shown, *complaint)
        elif isinstance(value, dict):
            if wrong := next((key for key in value if _complaint(key, 0)), None):
                yield Problem(".".join(path), wrong, "a name in it is no text that can be kept", "use plain names")
            places += [((*path, str(key)), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            places += [((*path, str(index)), inner) for index, inner in enumerate(value)]


def _complaint(value: Any, levels: int) -> tuple[str, str] | None:
    """What is wrong, and the remedy."""
    match value:
        case str() if "\0" in value:
            return "it has a NUL character, which the database cannot keep", "leave it out"
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            return (
                "it has half of a surrogate pair, which is no character",
                "leave it out",
            )
        case int() if abs(value) > LARGEST:
            return "it does not fit into 64 bits", f"use a whole number of at most {LARGEST}"
        case date() | time():
            return "it is a date or a time, which nothing here takes", "put it in quotes if a text was meant"
        case dict() | list() if levels >= MOST_LEVELS:
            return f"it lies more than {MOST_LEVELS} levels deep", "use fewer levels"
    return None
