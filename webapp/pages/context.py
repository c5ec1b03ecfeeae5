"""What the frame around every page needs."""

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from webapp.accounts.models import Team

THEMES = frozenset({"light", "dark"})


def frame(request: HttpRequest) -> dict[str, Any]:
    """The chosen theme (empty: the system decides) and the reader's teams, read only where a page shows them."""
    theme = request.COOKIES.get("theme", "")
    return {
        "theme": theme if theme in THEMES else "",
        "my_teams": SimpleLazyObject(lambda: _teams_of(request)),
    }


def _teams_of(request: HttpRequest) -> list[Team]:
    if not request.user.is_authenticated:
        return []
    return list(Team.objects.filter(memberships__user=request.user).order_by("name"))
