"""Rows of a ready version for people: a page of a split, or those that hold a text, found by a bounded search."""

import json
from dataclasses import dataclass
from typing import Any

from engine.environments.dataset_reader import DamagedDataset, DatasetReader, NoSuchRow
from webapp.catalog.models import DatasetVersion
from webapp.refusals import Invalid, Refused

MOST_SEARCHED_ROWS = 20_000
MOST_SEARCHED_BYTES = 32 * 2**20
"""What one request looks at; the answer says where the next one goes on."""
LARGEST_PAGE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Rows:
    items: list[tuple[int, dict[str, Any]]]
    """Number and row."""
    next: int | None
    """The number from which the next page goes on; None where the split ends."""
    looked_at: int


def rows_of(version: DatasetVersion, split: str, first: int, limit: int, search: str = "") -> Rows:
    """Rows of the split from number ``first`` on, of which a search keeps those that hold the text in any case.

    Raises Refused for a version that is not ready or not here, and Invalid for a split that it does not have.
    """
    if not version.is_ready:
        raise Refused(f"the version is {version.state}; only a ready one has rows")
    try:
        with DatasetReader(version.folder, verifies=False) as reader:
            return _found(reader, split, first, limit, search.casefold())
    except NoSuchRow as missing:
        names = ", ".join(entry["name"] for entry in version.splits)
        raise Invalid.field("split", split, str(missing), f"use one of: {names}") from missing
    except DamagedDataset as damaged:
        raise Refused(f"the rows of {version} cannot be read: {damaged}") from damaged


def _found(reader: DatasetReader, split: str, first: int, limit: int, search: str) -> Rows:
    items: list[tuple[int, dict[str, Any]]] = []
    size, shown_bytes, searched_bytes, number = reader.len(split), 0, 0, first
    while number < size and len(items) < limit and shown_bytes < LARGEST_PAGE_BYTES:
        if number - first >= MOST_SEARCHED_ROWS or searched_bytes >= MOST_SEARCHED_BYTES:
            break
        line = reader.line(split, number)
        searched_bytes += len(line)
        if not search or search in line.decode().casefold():
            items.append((number, json.loads(line)))
            shown_bytes += len(line)
        number += 1
    return Rows(items, number if number < size else None, number - first)
