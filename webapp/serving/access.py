"""The door to serving keys: every page and endpoint comes through here."""

from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404

from webapp.accounts.access import Action, Who, allowed, readable_memberships_of
from webapp.serving.models import ServingKey


def serving_key_for(who: Who, key_id: UUID, *, to: Action = "read") -> ServingKey:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    found = ServingKey.objects.select_related("team", "run", "model_version__model").filter(id=key_id).first()
    if found is None:
        raise Http404
    allowed(who, found.team, to)
    return found


def serving_keys_of(who: Who) -> QuerySet[ServingKey]:
    """All that ``who`` may read, the newest first."""
    teams = readable_memberships_of(who).values("team_id")
    rows = ServingKey.objects.select_related("team", "run", "model_version__model", "created_by")
    return rows.filter(team__in=teams).order_by("-created_at", "-id")
