"""Cursor pages: a cursor names the last row of a page, so rows that come or go shift nothing."""

import base64
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet

from webapp.refusals import Invalid
from webapp.storable import unstorable

MOST_PER_PAGE = 200
Row = TypeVar("Row", bound=Model)


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


def page_of(
    rows: QuerySet[Row], position: Sequence[tuple[str, type]], *, limit: int, cursor: str | None
) -> tuple[list[Row], str | None]:
    """A page of ``rows``, which are in descending order of ``position``, and the cursor of the next one.

    ``position`` are fields that together tell rows apart, each with its type.  Raises Invalid for a foreign cursor.
    """
    names = [name for name, _ in position]
    if cursor is not None:
        rows = rows.filter(_beyond(names, decode_cursor(cursor, tuple(kind for _, kind in position))))
    page = list(rows.order_by(*(f"-{name}" for name in names))[: limit + 1])
    if len(page) <= limit:
        return page, None
    last = page[limit - 1]
    return page[:limit], encode_cursor(*(getattr(last, name) for name in names))


def _beyond(names: list[str], values: list[Any]) -> Q:
    """``(a, b) < (x, y)``, as a < x, or a = x and b < y."""
    condition = Q(**{f"{names[-1]}__lt": values[-1]})
    for name, value in zip(reversed(names[:-1]), reversed(values[:-1]), strict=True):
        condition = Q(**{f"{name}__lt": value}) | Q(**{name: value}) & condition
    # Says nothing new, but an index on the first field can be entered by it.
    return condition & Q(**{f"{names[0]}__lte": values[0]})


def _part(part: Any, kind: type) -> Any:
    """Raises ValueError.  Only numbers are numbers in JSON; all else is its text."""
    if any(unstorable(part)):
        raise ValueError
    if kind is int and type(part) is int:
        return part
    if kind is int or not isinstance(part, str):
        raise ValueError
    if kind is not datetime:
        return kind(part)
    moment = datetime.fromisoformat(part)
    if moment.tzinfo is None:
        raise ValueError
    return moment
