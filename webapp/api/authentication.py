"""Who calls the API: a program with a key, or a signed-in browser with its CSRF token.

An endpoint that acts names its door (``webapp/api/doors.py``): the caller goes through it here, before anything of
the request's body is read, so that nobody learns from an error text what they may not do.
"""

from collections.abc import Callable
from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from ninja.security import APIKeyCookie, HttpBearer

from webapp.accounts.access import Caller
from webapp.accounts.models import ApiKey, User

_NOTE_USE_EVERY = timedelta(minutes=1)


Door = Callable[[HttpRequest, Caller], None]
"""Raises Http404 or PermissionDenied."""


class KeyAuth(HttpBearer):
    def __init__(self, door: Door | None = None) -> None:
        super().__init__()
        self._door = door

    def __call__(self, request: HttpRequest) -> Caller | None:
        return _through(self._door, request, super().__call__(request))

    def authenticate(self, request: HttpRequest, token: str) -> Caller | None:
        parts = token.split("_", 2)
        if len(parts) != 3 or parts[0] != "pal":
            return None
        key = ApiKey.objects.select_related("user", "team").filter(prefix=parts[1], revoked_at=None).first()
        if key is None or not key.matches(token) or not key.user.is_active:
            return None
        _note_use(key)
        return Caller(key.user, key)


def _note_use(key: ApiKey) -> None:
    """Once a minute is exact enough for "last used", and keeps reads free of writes."""
    now = timezone.now()
    stale = Q(last_used_at=None) | Q(last_used_at__lt=now - _NOTE_USE_EVERY)
    ApiKey.objects.filter(stale, id=key.id).update(last_used_at=now)


class SessionAuth(APIKeyCookie):
    """Serves our own pages.  A request with an ``Authorization`` header is judged by that alone."""

    param_name = settings.SESSION_COOKIE_NAME

    def __init__(self, door: Door | None = None) -> None:
        super().__init__()
        self._door = door

    def __call__(self, request: HttpRequest) -> Caller | None:
        if "Authorization" in request.headers or self.param_name not in request.COOKIES:
            return None
        return _through(self._door, request, super().__call__(request))

    def authenticate(self, request: HttpRequest, key: str | None) -> Caller | None:
        return Caller(request.user) if isinstance(request.user, User) and request.user.is_active else None


def _through(door: Door | None, request: HttpRequest, caller: Caller | None) -> Caller | None:
    if door is not None and caller is not None:
        door(request, caller)
    return caller
