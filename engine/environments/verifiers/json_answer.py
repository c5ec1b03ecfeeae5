"""JSON that a policy wrote, read within bounds."""

import json
import math
from typing import Any

DEEPEST = 64
LONGEST_NUMBER = 300
"""In characters."""


class Unreadable(ValueError):
    """The text is no JSON, or beyond the bounds."""


def read(text: str) -> Any:
    """The value.  A number without a fraction is an ``int``, however it is written.  Raises ``Unreadable``.

    ``NaN``, infinities, names that stand twice in an object, and tables more than 64 deep are refused.
    """
    try:
        value = json.loads(
            text, parse_constant=_constant, parse_float=_float, parse_int=_int, object_pairs_hook=_object
        )
    except (ValueError, RecursionError) as error:
        raise Unreadable(str(error)[:200]) from error
    if not _is_shallow(value):
        raise Unreadable(f"objects and lists lie more than {DEEPEST} deep in it")
    return value


def canonical(value: Any) -> str:
    """Equal for equal values: ``true`` is not 1, and the order of an object's names makes no difference."""
    return json.dumps(value, sort_keys=True)


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _float(digits: str) -> float | int:
    value = float(digits) if len(digits) <= LONGEST_NUMBER else math.inf
    if not math.isfinite(value):
        raise ValueError("a number is too long or too large")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _int(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError("a number is too long")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return table


def _is_shallow(value: Any) -> bool:
    """Counted level by level, because recursion has a bound."""
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [inner for inner in level if isinstance(inner, dict | list)]
        level = [child for inner in level for child in (inner.values() if isinstance(inner, dict) else inner)]
    return not level
