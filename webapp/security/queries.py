"""What lists of alerts and records can be narrowed to; page and API ask here."""

from typing import Any, get_args
from uuid import UUID

from django.db.models import Q, QuerySet

from sandboxes.egress.connection_attempt import Protocol
from webapp.runs.models import Run
from webapp.security.models import Alert, AlertState, EgressRecord, Quarantine, QuarantineState, Severity

STATES = {"": "Any state", **dict(AlertState.choices)}
SEVERITIES = {"": "Any severity", **dict(Severity.choices)}
DECISIONS = {"": "Any decision", "denied": "Denied", "allowed": "Allowed"}
PROTOCOLS = {"": "Any protocol", **{name: name.upper() for name in get_args(Protocol)}}
QUARANTINES = {
    "": "Any quarantine status",
    "quarantined": "Quarantined, ever",
    QuarantineState.PENDING: "Waiting for a review decision",
    QuarantineState.BENIGN: "Found benign",
    QuarantineState.MALICIOUS: "Found malicious",
}


def alerts_where(
    alerts: QuerySet[Alert],
    *,
    state: str | None = None,
    severity: str | None = None,
    rule: str | None = None,
    run: UUID | None = None,
    trajectory: str | None = None,
) -> QuerySet[Alert]:
    """Those that meet every condition given."""
    asked = {"state": state, "severity": severity, "rule": rule, "run": run, "trajectory_id": trajectory}
    return alerts.filter(**{name: value for name, value in asked.items() if value})


def records_where(
    run: Run,
    *,
    trajectory: str | None = None,
    turn: int | None = None,
    decision: str | None = None,
    protocol: str | None = None,
    name: str | None = None,
    address: str | None = None,
    sandbox: str | None = None,
) -> QuerySet[EgressRecord]:
    """The run's records that meet every condition given, newest first.

    ``name`` is a part of the name asked for, of the SNI or of the Host; the others are exact.
    """
    asked: dict[str, Any] = {"trajectory_id": trajectory, "protocol": protocol, "address": address, "sandbox": sandbox}
    found = EgressRecord.objects.filter(run=run, **{field: value for field, value in asked.items() if value})
    if turn is not None:
        found = found.filter(turn=turn)
    if decision:
        found = found.filter(allowed=decision == "allowed")
    if name:
        found = found.filter(Q(name__icontains=name) | Q(sni__icontains=name) | Q(host__icontains=name))
    return found.order_by("-event_seq", "-seq")


def quarantines_where(run: Run, *, state: str | None = None) -> QuerySet[Quarantine]:
    """Newest first."""
    found = Quarantine.objects.filter(run=run).select_related("decided_by").order_by("-since", "trajectory_id")
    return found.filter(state=state) if state else found
