"""What a check against a JSON schema may cost that a stranger wrote: one list of keywords, and one measure.

Without the keywords of the list, a check looks at each part of the value at most once with each part of the schema.
"""

from collections.abc import Iterator
from typing import Any

UNBOUNDED_KEYWORDS = frozenset(
    {
        "pattern", "patternProperties", "uniqueItems", "unevaluatedProperties", "unevaluatedItems",
        "$ref", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
"""Their check can take more time than that: a pattern for ever, unique items by the square of their number, what is not
evaluated by a power of the schema's depth; a reference leads anywhere, or in a circle."""
NAMES_TO_SCHEMAS = frozenset({"properties", "dependentSchemas"})
"""Keywords whose value is a table by names of properties, none of which is a keyword."""
LARGEST_SCHEMA = 1000
"""Parts of a tool's schema."""
LARGEST_CHECK = 200_000
"""Parts of the schema times parts of the value, which take about two seconds."""
_PART_CHARACTERS = 1000


def parts_in(document: Any) -> int:
    """The number of its tables, lists and values; a text counts once more for each 1,000 characters."""
    return sum(1 + (len(part) // _PART_CHARACTERS if isinstance(part, str) else 0) for part in _parts(document))


def keys_in(document: Any) -> set[str]:
    """Every key of every table, keywords and names of properties alike."""
    return {key for part in _parts(document) if isinstance(part, dict) for key in part}


def _parts(document: Any) -> Iterator[Any]:
    left = [document]
    while left:
        part = left.pop()
        yield part
        match part:
            case dict():
                left += part.values()
            case list():
                left += part
