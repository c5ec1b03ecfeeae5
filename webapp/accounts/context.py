"""The reader's teams, for the frame around every page."""

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from webapp.accounts.models import Team


def my_teams(request: HttpRequest) -> dict[str, Any]:
    """Read only where a page shows them."""
    return {"my_teams": SimpleLazyObject(lambda: _teams_of(request))}


def _teams_of(request: HttpRequest) -> list[Team]:
    if not request.user.is_authenticated:
        return []
    return list(Team.objects.filter(memberships__user=request.user).order_by("name"))
