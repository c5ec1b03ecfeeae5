"""The door to alerts, records and quarantines: through their run's team."""

from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404

from webapp.accounts.access import Action, Who, allowed, readable_memberships_of
from webapp.runs.access import run_for
from webapp.security.models import Alert, Quarantine


def alert_for(who: Who, alert_id: int, *, to: Action = "read") -> Alert:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    alert = Alert.objects.select_related("team", "run", "acknowledged_by").filter(id=alert_id).first()
    if alert is None:
        raise Http404
    allowed(who, alert.team_id, to)
    return alert


def alerts_of(who: Who) -> QuerySet[Alert]:
    """All alerts that ``who`` may read, newest first."""
    teams = readable_memberships_of(who).values("team_id")
    return Alert.objects.select_related("run", "team").defer("run__spec").filter(team__in=teams).order_by("-id")


def quarantine_for(who: Who, run_id: UUID | str, trajectory_id: str, *, to: Action = "read") -> Quarantine:
    run = run_for(who, run_id, to=to)
    if "\0" in trajectory_id:
        raise Http404
    quarantine = Quarantine.objects.select_related("ruled_by").filter(run=run, trajectory_id=trajectory_id).first()
    if quarantine is None:
        raise Http404
    quarantine.run = run
    return quarantine
