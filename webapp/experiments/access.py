"""The door to experiments."""

from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404

from webapp.accounts.access import Action, Who, allowed, readable_memberships_of
from webapp.experiments.models import Experiment


def experiment_for(who: Who, experiment_id: UUID | str, *, to: Action = "read") -> Experiment:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    try:
        experiment = Experiment.objects.select_related("team").filter(id=UUID(str(experiment_id))).first()
    except ValueError:
        raise Http404 from None
    if experiment is None:
        raise Http404
    allowed(who, experiment.team, to)
    return experiment


def experiments_of(who: Who) -> QuerySet[Experiment]:
    teams = readable_memberships_of(who).values("team_id")
    return Experiment.objects.select_related("team").filter(team__in=teams).order_by("-updated_at", "-id")
