"""Cursor pages: a cursor names the last row of a page, so rows that come or go shift nothing."""

import base64
import json
from datetime import datetime
from typing import Any

from webapp.refusals import Invalid
from webapp.storable import unstorable

MOST_PER_PAGE = 200


def encode_cursor(*position: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(position, default=str).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, kinds: tuple[type, ...]) -> list[Any]:
    """The position that ``encode_cursor`` was given.  Raises Invalid for anything else."""
    try:
        position = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(position, list):
            raise ValueError
        return [_part(part, kind) for part, kind in zip(position, kinds, strict=True)]
    except (ValueError, RecursionError):
        raise Invalid.field(
            "cursor", cursor, "this is no cursor of ours", "use next_cursor of the page before, or leave it out"
        ) from None


def _part(part: Any, kind: type) -> Any:
    """Raises ValueError.  Only numbers are numbers in JSON; all else is its text."""
    if type(part) is not (int if kind is int else str) or any(unstorable(part)):
        raise ValueError
    return datetime.fromisoformat(part) if kind is datetime else kind(part)
