"""Curves, drawn from the coarsest roll-up that still fills the screen.  Minimum and maximum are exact at every zoom."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from django.db import connection, transaction

from webapp.runs.models import LEVELS

MOST_BUCKETS = 5000


@dataclass(frozen=True, slots=True)
class Point:
    """``count`` values of steps ``step`` .. ``last_step``."""

    step: int
    last_step: int
    minimum: float
    maximum: float
    mean: float
    last: float
    count: int


@dataclass(frozen=True, slots=True)
class Series:
    key: str
    level: int
    """Steps per bucket of the roll-up it was read from; 1 means the points themselves."""
    points: list[Point]


@contextmanager
def one_snapshot() -> Iterator[None]:
    """Everything read inside is of one moment, e.g. the series and the ``last_seq`` that they stand at."""
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def series_of(
    run_id: UUID,
    *,
    keys: Sequence[str] | None = None,
    first_step: int = 0,
    last_step: int | None = None,
    buckets: int = 1000,
) -> list[Series]:
    """The curves of ``keys`` (default: all), each with at most ``buckets`` points between the two steps."""
    buckets = max(1, min(buckets, MOST_BUCKETS))
    found = []
    for key, key_id, lowest, highest in _extents(run_id, keys):
        first, last = max(first_step, lowest), highest if last_step is None else min(last_step, highest)
        if first <= last:
            level = _level_for(last - first + 1, buckets)
            found.append(Series(key, level, _points(run_id, key_id, level, first, last, buckets)))
    return found


_EXTENTS = """
SELECT key.name, key.id, min(bucket) * 1000, max(last_step)
FROM runs_metricrollup rollup JOIN runs_metrickey key ON key.id = rollup.key_id
WHERE run_id = %s AND level = 1000 AND (%s::text[] IS NULL OR key.name = ANY(%s::text[]))
GROUP BY key.id, key.name ORDER BY key.name
"""


def _extents(run_id: UUID, keys: Sequence[str] | None) -> list[tuple[str, int, int, int]]:
    wanted = None if keys is None else list(keys)
    with connection.cursor() as cursor:
        cursor.execute(_EXTENTS, [run_id, wanted, wanted])
        extents: list[tuple[str, int, int, int]] = cursor.fetchall()
        return extents


def _level_for(steps: int, buckets: int) -> int:
    return next((level for level in (1, *LEVELS) if steps / level <= buckets), LEVELS[-1])


_POINTS = """
SELECT step, step, value, value, value, value, 1 FROM runs_metricpoint
WHERE run_id = %(run)s AND key_id = %(key)s AND step BETWEEN %(first)s AND %(last)s ORDER BY step
"""
_ROLLUPS = """
SELECT min(bucket) * %(level)s, max(last_step), min(minimum), max(maximum), sum(total) / sum(count),
       (array_agg(last ORDER BY bucket DESC))[1], sum(count)
FROM runs_metricrollup
WHERE run_id = %(run)s AND key_id = %(key)s AND level = %(level)s
      AND bucket BETWEEN %(first)s / %(level)s AND %(last)s / %(level)s
GROUP BY (bucket - %(first)s / %(level)s) / %(merged)s ORDER BY 1
"""


def _points(run_id: UUID, key_id: int, level: int, first: int, last: int, buckets: int) -> list[Point]:
    covered = last // level - first // level + 1
    given: dict[str, UUID | int] = {
        "run": run_id,
        "key": key_id,
        "first": first,
        "last": last,
        "level": level,
        "merged": -(-covered // buckets),
    }
    with connection.cursor() as cursor:
        cursor.execute(_POINTS if level == 1 else _ROLLUPS, given)
        return [Point(*row) for row in cursor.fetchall()]
