"""The door to runs: every page, endpoint and websocket comes through here."""

from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404

from webapp.accounts.access import Action, Who, allowed, readable_memberships_of
from webapp.runs.models import Run


def run_for(who: Who, run_id: UUID | str, *, to: Action = "read") -> Run:
    """The run, if ``who`` may do ``to`` with it.  Raises Http404 for strangers, PermissionDenied for a role too low."""
    try:
        run = Run.objects.select_related("team", "experiment").filter(id=UUID(str(run_id))).first()
    except ValueError:
        raise Http404 from None
    if run is None:
        raise Http404
    allowed(who, run.team, to)
    return run


def runs_of(who: Who) -> QuerySet[Run]:
    """All runs that ``who`` may read, newest first."""
    teams = readable_memberships_of(who).values("team_id")
    return Run.objects.select_related("team").filter(team__in=teams).order_by("-created_at", "-id")
