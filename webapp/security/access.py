"""The door to alerts, records and quarantines: through their run's team."""

from collections.abc import Sequence
from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import Http404

from webapp.accounts.access import Action, Who, allowed, readable_memberships_of
from webapp.accounts.models import Team
from webapp.runs.access import run_for
from webapp.security.groups import alike
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


def chosen_alerts(who: Who, team: Team, *, alerts: Sequence[int], like: Sequence[int]) -> QuerySet[Alert]:
    """The team's alerts that are named, and all alike to one in ``like``.

    Raises Http404 if one that is named is not there or not the team's.  The caller has been through the team's door.
    """
    mine = alerts_of(who).filter(team=team)
    if mine.filter(id__in={*alerts, *like}).count() < len({*alerts, *like}):
        raise Http404
    return mine.filter(Q(id__in=alerts) | alike(like))


def quarantine_for(who: Who, run_id: UUID | str, trajectory_id: str, *, to: Action = "read") -> Quarantine:
    run = run_for(who, run_id, to=to)
    if "\0" in trajectory_id:
        raise Http404
    quarantine = Quarantine.objects.select_related("decided_by").filter(run=run, trajectory_id=trajectory_id).first()
    if quarantine is None:
        raise Http404
    quarantine.run = run
    return quarantine
