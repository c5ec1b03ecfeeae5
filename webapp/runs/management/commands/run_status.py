"""``manage.py run_status RUN``: where a run stands, and how much of it is stored, as JSON."""

import json
from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Count

from webapp.runs.models import Run

_FIELDS = (
    "number", "name", "state", "desired", "attempt", "phase", "step", "total_steps", "eta_s", "last_seq",
    "failure_reason", "summary", "heartbeat_at", "created_at", "started_at", "ended_at",
)  # fmt: skip


class Command(BaseCommand):
    help = "Print a run's state and counts as JSON."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("run", type=UUID)

    def handle(self, *, run: UUID, **_options: Any) -> None:
        found = Run.objects.filter(id=run).first()
        if found is None:
            raise CommandError(f"there is no run {run}")
        stored = found.events.aggregate(rows=Count("*"), numbers=Count("seq", distinct=True))
        status = {"run": str(run)} | {field: getattr(found, field) for field in _FIELDS}
        status |= {
            "events_stored": stored["rows"],
            "events_duplicated": stored["rows"] - stored["numbers"],
            "metric_points_stored": found.metric_points.count(),
            "trajectories_stored": found.trajectories.count(),
            "alerts": _alerts(found),
            "transitions": list(found.transitions.values("from_state", "to_state", "attempt", "by", "reason", "at")),
        }
        self.stdout.write(json.dumps(status, cls=DjangoJSONEncoder))


def _alerts(run: Run) -> dict[str, Any]:
    """``seconds_to_stored``: from the packet or command that completed the evidence, by the worker's clock."""
    seconds = sorted((stored - at).total_seconds() for at, stored in run.alerts.values_list("at", "stored_at"))
    if not seconds:
        return {"stored": 0}
    p50, p95 = (seconds[min(int(share * len(seconds)), len(seconds) - 1)] for share in (0.5, 0.95))
    return {"stored": len(seconds), "seconds_to_stored": {"p50": p50, "p95": p95, "max": seconds[-1]}}
