"""Cursor pages: a cursor names the last row of a page, so rows that come or go shift nothing."""

import base64
import binascii
import json
from typing import Any

from webapp.refusals import Invalid

MOST_PER_PAGE = 200


def encode_cursor(*position: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(position, default=str).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, kinds: tuple[type, ...]) -> list[Any]:
    """The position that ``encode_cursor`` was given.  Raises Invalid for anything else."""
    try:
        position = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        position = None
    if not isinstance(position, list) or [type(part) for part in position] != list(kinds):
        raise Invalid.field(
            "cursor", cursor, "this is no cursor of ours", "use next_cursor of the page before, or leave it out"
        )
    return position
