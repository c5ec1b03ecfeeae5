"""The rows of the runs table: a run with its latest values and the shape of its reward curve."""

from dataclasses import dataclass
from typing import Any

from django.core.paginator import Page, Paginator
from django.db import connection
from django.db.models import Q, QuerySet
from django.utils import timezone

from webapp.runs.models import ENDED, LIVE, Run, RunStatus
from webapp.runs.now import Now, cold_starts_of, now_of_run

ROWS = 25
SPARK_POINTS = 60

FILTERS: dict[str, tuple[str, Q]] = {
    "": ("All", Q()),
    "live": ("Live", Q(state__in=LIVE | {RunStatus.QUEUED})),
    "succeeded": ("Succeeded", Q(state=RunStatus.SUCCEEDED)),
    "failed": ("Failed", Q(state=RunStatus.FAILED)),
    "cancelled": ("Cancelled", Q(state=RunStatus.CANCELLED)),
}

_LATEST = """
SELECT given.run_id, key.name, latest.value FROM unnest(%s::uuid[]) AS given (run_id)
CROSS JOIN (SELECT id, name FROM runs_metrickey WHERE name = ANY(%s)) key
CROSS JOIN LATERAL (
    SELECT step, value FROM runs_metricpoint
    WHERE run_id = given.run_id AND key_id = key.id ORDER BY step DESC LIMIT %s
) latest ORDER BY given.run_id, key.name, latest.step
"""


@dataclass(frozen=True)
class Row:
    run: Run
    rewards: list[float]
    success: float | None
    """It is that of the last training step."""
    now: Now

    @property
    def reward(self) -> float | None:
        return self.rewards[-1] if self.rewards else None

    @property
    def seconds(self) -> float | None:
        """Return how long it ran, or runs."""
        if self.run.started_at is None:
            return None
        return ((self.run.ended_at or timezone.now()) - self.run.started_at).total_seconds()


@dataclass(frozen=True)
class Listing:
    rows: list[Row]
    page: Page[Run]

    @property
    def has_unended(self) -> bool:
        return any(row.run.state not in ENDED for row in self.rows)


def listing(runs: QuerySet[Run], *, state: str, text: str, page: str) -> Listing:
    """A page of the runs that match; unknown states match everything."""
    chosen = runs.filter(FILTERS.get(state, FILTERS[""])[1]).select_related("created_by").defer("spec", "summary")
    if text:
        chosen = chosen.filter(_mentions(text))
    found = Paginator(chosen, ROWS).get_page(page)
    values = _latest_values([run.id for run in found])
    cold_starts = cold_starts_of(run.id for run in found)
    rows = [
        Row(
            run,
            values.get((run.id, "train/reward"), []),
            _last(values.get((run.id, "train/success"))),
            now_of_run(run, cold_starts.get(run.id)),
        )
        for run in found
    ]
    return Listing(rows, found)


def _mentions(text: str) -> Q:
    number = text.removeprefix("#")
    found = Q(name__icontains=text) | Q(created_by__email__icontains=text) | Q(created_by__name__icontains=text)
    return found | Q(number=int(number)) if number.isascii() and number.isdigit() and len(number) < 9 else found


def _latest_values(run_ids: list[Any]) -> dict[tuple[Any, str], list[float]]:
    values: dict[tuple[Any, str], list[float]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_LATEST, [run_ids, ["train/reward", "train/success"], SPARK_POINTS])
        for run_id, name, value in cursor.fetchall():
            values.setdefault((run_id, name), []).append(value)
    return values


def _last(values: list[float] | None) -> float | None:
    return values[-1] if values else None
