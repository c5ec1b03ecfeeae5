"""Writes a document as TOML, in its order, so that a person can read and edit it; ``tomllib`` reads it.

TOML has no word for null: what is None is left out.
"""

from collections.abc import Mapping
from typing import Any

import tomlkit


def toml_of(document: Mapping[str, Any]) -> str:
    """The TOML of a document of dicts, lists, texts, numbers and truths, as JSON has them."""
    return tomlkit.dumps(_without_null(document)).strip() + "\n"


def _without_null(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_null(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_null(inner) for inner in value]
    return value
