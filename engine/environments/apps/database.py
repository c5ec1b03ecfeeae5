"""The databases behind the apps, and what differs between two moments of them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

Row = Mapping[str, str | int]
Tables = Mapping[str, Mapping[int, Row]]
"""Table -> id -> row.  Nothing of it is ever changed: a change makes a new one."""

FIRST_NEW_ID = 100
"""Rows that a task begins with have lower ids; new ones count from here."""


@dataclass(frozen=True, slots=True)
class Database:
    tables: Tables
    logged_in: frozenset[str] = frozenset()
    """The apps whose token was given out."""
    next_id: int = FIRST_NEW_ID

    def rows(self, table: str) -> list[dict[str, Any]]:
        """In the order of their ids, each with its id."""
        return [{"id": number, **row} for number, row in sorted(self.tables[table].items())]

    def added(self, table: str, row: Row) -> "Database":
        return replace(self._with(table, {**self.tables[table], self.next_id: row}), next_id=self.next_id + 1)

    def changed(self, table: str, number: int, fields: Row) -> "Database":
        return self._with(table, {**self.tables[table], number: {**self.tables[table][number], **fields}})

    def removed(self, table: str, number: int) -> "Database":
        return self._with(table, {key: row for key, row in self.tables[table].items() if key != number})

    def _with(self, table: str, rows: Mapping[int, Row]) -> "Database":
        return replace(self, tables={**self.tables, table: rows})


def difference(before: Tables, after: Tables) -> Counter[tuple[Any, ...]]:
    """Every row that was added (whatever its id), removed, or changed in a field."""
    return Counter(change for table in before for change in _changes(table, before[table], after[table]))


def _changes(table: str, before: Mapping[int, Row], after: Mapping[int, Row]) -> Iterator[tuple[Any, ...]]:
    for number, row in after.items():
        if number not in before:
            yield ("added", table, *sorted(row.items()))
            continue
        yield from (
            ("changed", table, number, name, value) for name, value in row.items() if before[number][name] != value
        )
    yield from (("removed", table, number) for number in before if number not in after)
