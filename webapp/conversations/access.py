"""The door to conversations: every page, endpoint and websocket comes through here."""

from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404

from webapp.accounts.access import Action, Who, allowed, readable_memberships_of
from webapp.conversations.models import Conversation


def conversation_for(who: Who, conversation_id: UUID | str, *, to: Action = "read") -> Conversation:
    """Raises Http404 for strangers, PermissionDenied for a role too low."""
    found = (
        Conversation.objects.select_related("team", "run", "model_version__model").filter(id=conversation_id).first()
    )
    if found is None:
        raise Http404
    allowed(who, found.team, to)
    return found


def conversations_of(who: Who) -> QuerySet[Conversation]:
    """All that ``who`` may read, the last used first."""
    teams = readable_memberships_of(who).values("team_id")
    return Conversation.objects.select_related("team", "run").filter(team__in=teams).order_by("-used_at", "-id")
