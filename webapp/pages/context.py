"""What the frame around every page needs."""

from dataclasses import dataclass
from typing import Any

from django.db.models import Max
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from webapp.accounts.models import Team
from webapp.security.access import alerts_of
from webapp.security.models import AlertState

THEMES = frozenset({"light", "dark"})


def frame(request: HttpRequest) -> dict[str, Any]:
    """The chosen theme (empty: the system decides), the reader's teams and bell; read only where a page shows them."""
    theme = request.COOKIES.get("theme", "")
    return {
        "theme": theme if theme in THEMES else "",
        "my_teams": SimpleLazyObject(lambda: _teams_of(request)),
        "bell": SimpleLazyObject(lambda: _bell_of(request)),
    }


@dataclass(frozen=True)
class Bell:
    """Where live news about alerts go on from (``ws/alerts``)."""

    open: int
    last_id: int


def _bell_of(request: HttpRequest) -> Bell:
    if not request.user.is_authenticated:
        return Bell(0, 0)
    alerts = alerts_of(request).order_by()
    last = alerts.aggregate(last=Max("id"))["last"]
    return Bell(alerts.filter(state=AlertState.OPEN).count(), last or 0)


def _teams_of(request: HttpRequest) -> list[Team]:
    if not request.user.is_authenticated:
        return []
    return list(Team.objects.filter(memberships__user=request.user).order_by("name"))
