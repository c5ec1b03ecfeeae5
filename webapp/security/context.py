"""The bell of open alerts, for the frame around every page."""

from dataclasses import dataclass
from typing import Any

from django.db.models import Max
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from webapp.security.access import alerts_of
from webapp.security.models import AlertState


@dataclass(frozen=True)
class Bell:
    """Where live news about alerts go on from (``ws/alerts``)."""

    open: int
    last_id: int


def bell(request: HttpRequest) -> dict[str, Any]:
    """Read only where a page shows it."""
    return {"bell": SimpleLazyObject(lambda: _bell_of(request))}


def _bell_of(request: HttpRequest) -> Bell:
    if not request.user.is_authenticated:
        return Bell(0, 0)
    alerts = alerts_of(request).order_by()
    last = alerts.aggregate(last=Max("id"))["last"]
    return Bell(alerts.filter(state=AlertState.OPEN).count(), last or 0)
