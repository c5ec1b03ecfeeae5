"""Everything that a run page shows at first, and the number of the last event in it, from one snapshot.

The viewer then asks for what came after that number, so there is neither a gap nor a double point.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.db import connection

from webapp.runs.header import header_of
from webapp.runs.lanes import lanes_of
from webapp.runs.models import Run
from webapp.runs.now import cold_starts_of
from webapp.runs.series import Series, one_snapshot, series_of

MOST_POINTS = 2000
"""Longer series come rolled up: the mean, with the smallest and largest value around it."""
LOG_LINES = 500
PHASE_STEPS = 400


def snapshot(run_id: UUID) -> dict[str, Any]:
    """Raises Run.DoesNotExist.  Must not be called inside a transaction: it needs one of its own."""
    with one_snapshot():
        run = Run.objects.defer("spec").get(id=run_id)
        return {
            "seq": run.last_seq,
            "run": header_of(
                run.state, run.state_since, run.desired, run.attempt, run.phase, run.step, run.total_steps,
                run.heartbeat, run.heartbeat_at, run.started_at, run.ended_at, run.failure_reason,
                cold_start=cold_starts_of([run.id])[run.id],
            ),
            "series": curves_of(run_id),
            "phases": _phases(run_id, run.step),
            "lanes": [asdict(step) for step in lanes_of(run_id)],
            "logs": _logs(run_id),
            **counts_of(run),
        }  # fmt: skip


def counts_of(run: Run) -> dict[str, int]:
    return {"trajectories": run.trajectories.count(), "alerts": run.alerts.count()}


def close_look(run_id: UUID, keys: Sequence[str], first_step: int, last_step: int) -> dict[str, Any]:
    """The curves of ``keys`` between two steps, as finely as ``MOST_POINTS`` allow, and the last event in them.

    Raises Run.DoesNotExist.  Needs a transaction of its own, like ``snapshot``.
    """
    with one_snapshot():
        seq = Run.objects.values_list("last_seq", flat=True).get(id=run_id)
        return {"seq": seq, "series": curves_of(run_id, keys=keys, first_step=first_step, last_step=last_step)}


def curves_of(
    run_id: UUID, *, keys: Sequence[str] | None = None, first_step: int = 0, last_step: int | None = None
) -> dict[str, dict[str, Any]]:
    """Per key ``steps`` and ``values``, and where several steps share a point the band ``low`` to ``high``.

    A point that stands for several steps stands at the last of them, so that the curve ends where the run is.
    """
    found = series_of(run_id, keys=keys, first_step=first_step, last_step=last_step, buckets=MOST_POINTS)
    return {series.key: _curve(series) for series in found}


def _curve(series: Series) -> dict[str, Any]:
    points = series.points
    curve: dict[str, Any] = {"steps": [at.last_step for at in points], "values": [at.mean for at in points]}
    if series.level > 1:
        curve |= {"low": [at.minimum for at in points], "high": [at.maximum for at in points]}
    return curve


def _phases(run_id: UUID, step: int) -> list[list[Any]]:
    """``[step, phase, seconds]`` of finished phases, the last word about each, in the lineage that counts."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH restarts AS (SELECT seq, step FROM runs_event WHERE run_id = %(run)s AND kind = 'started')
            SELECT DISTINCT ON (step, body->>'phase') step, body->>'phase', (body->>'seconds')::float8
            FROM runs_event event
            WHERE run_id = %(run)s AND kind = 'phase' AND step > %(from)s AND body->>'seconds' IS NOT NULL
              AND NOT EXISTS (SELECT FROM restarts WHERE restarts.seq > event.seq AND restarts.step < event.step)
            ORDER BY step, body->>'phase', seq DESC
            """,
            {"run": run_id, "from": step - PHASE_STEPS},
        )
        return [list(row) for row in cursor.fetchall()]


def _logs(run_id: UUID) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq, attempt, extract(epoch FROM at)::float8, body->>'level', body->>'source', body->>'message'"
            " FROM runs_event"
            " WHERE run_id = %s AND kind = 'log' ORDER BY seq DESC LIMIT %s",
            [run_id, LOG_LINES],
        )
        names = ("seq", "attempt", "at", "level", "source", "message")
        return [dict(zip(names, row, strict=True)) for row in reversed(cursor.fetchall())]
