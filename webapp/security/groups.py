"""Alike alerts as one: those of the same rule, about the same destination (or command), in the same run.

A group is named by any of its alerts.  A page of groups costs a fixed number of statements.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Case, Count, IntegerField, Max, Min, Q, QuerySet, Value, When

from webapp.security.models import Alert, AlertState, QuarantineState, Severity

ALIKE = ("run_id", "rule", "subject")
_SEVERITIES = [Severity.CRITICAL, Severity.WARNING, Severity.INFO]
_RANK = Case(
    *(When(severity=severity, then=Value(rank)) for rank, severity in enumerate(_SEVERITIES)),
    default=Value(len(_SEVERITIES) - 1),
    output_field=IntegerField(),
)


@dataclass(frozen=True)
class AlertGroup:
    """``trajectories`` is of all alike, the others are of the alerts that a list shows."""

    id: int
    """It is the oldest alert's: it stays when the group grows."""
    newest: Alert
    count: int
    undecided: int
    severity: Severity
    """The worst."""
    first: datetime
    last: datetime
    trajectories: dict[QuarantineState, int] = field(default_factory=dict)
    """How many of those that they quarantined stand how."""

    @property
    def pending(self) -> int:
        return self.trajectories.get(QuarantineState.PENDING, 0)

    @property
    def quarantine_statuses(self) -> list[tuple[QuarantineState, int]]:
        return [(state, count) for state in QuarantineState if (count := self.trajectories.get(state, 0))]


def grouped(alerts: QuerySet[Alert]) -> QuerySet[Any]:
    """One row per group, the one with the newest alert first; ``filled`` makes ``AlertGroup`` of some of them."""
    rows: QuerySet[Any] = (
        alerts.order_by()
        .values(*ALIKE)
        .annotate(
            oldest=Min("id"),
            newest=Max("id"),
            count=Count("id"),
            undecided=Count("id", filter=~Q(state=AlertState.ACKNOWLEDGED)),
            rank=Min(_RANK),
            first=Min("at"),
            last=Max("at"),
        )
        .order_by("-newest")
    )
    return rows


def filled(rows: Sequence[dict[str, Any]]) -> list[AlertGroup]:
    """In two statements, however many rows."""
    newest = Alert.objects.select_related("run", "team").defer("run__spec").in_bulk([row["newest"] for row in rows])
    quarantine_statuses = _quarantine_statuses(rows) if rows else {}
    return [
        AlertGroup(
            id=row["oldest"],
            newest=newest[row["newest"]],
            count=row["count"],
            undecided=row["undecided"],
            severity=_SEVERITIES[row["rank"]],
            first=row["first"],
            last=row["last"],
            trajectories=quarantine_statuses.get(tuple(row[name] for name in ALIKE), {}),
        )
        for row in rows
    ]


_QUARANTINE_STATUSES = """
SELECT alert.run_id, alert.rule, alert.subject, held.state, count(DISTINCT held.trajectory_id)
FROM unnest(%s::uuid[], %s::text[], %s::text[]) AS given (run_id, rule, subject)
JOIN security_alert alert USING (run_id, rule, subject)
JOIN security_quarantine held ON held.run_id = alert.run_id AND held.trajectory_id = alert.trajectory_id
GROUP BY alert.run_id, alert.rule, alert.subject, held.state
"""


def _quarantine_statuses(rows: Sequence[dict[str, Any]]) -> dict[tuple[UUID, str, str], dict[QuarantineState, int]]:
    found: dict[tuple[UUID, str, str], dict[QuarantineState, int]] = defaultdict(dict)
    with connection.cursor() as cursor:
        cursor.execute(_QUARANTINE_STATUSES, [[row[name] for row in rows] for name in ALIKE])
        for run_id, rule, subject, state, count in cursor.fetchall():
            found[run_id, rule, subject][QuarantineState(state)] = count
    return found


def alike(ids: Sequence[int]) -> Q:
    """Choose the alerts that are in a group with one of ``ids``.

    The groups are read at once, so that the statement names them: a table compared with itself is a plan that
    PostgreSQL gets wrong by a factor of a thousand as long as it has no statistics of the table.
    """
    groups = Alert.objects.filter(id__in=ids).order_by().values(*ALIKE).distinct()
    return reduce(or_, (Q(**group) for group in groups), Q(pk__in=[]))
