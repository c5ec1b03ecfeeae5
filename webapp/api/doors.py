"""The doors of endpoints that act: passed with the authentication, before a body is read.

The endpoint's own code goes through its door again, with what the body names; this one answers 403 and 404 first.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.http.request import RawPostDataException

from webapp.accounts.access import Action, Caller, allowed_somewhere, team_for
from webapp.api.authentication import KeyAuth, SessionAuth
from webapp.refusals import Invalid

Find = Callable[..., Any]
"""A door of an app, such as ``run_for``: ``find(who, id, to=action)``."""


def somewhere(action: Action) -> list[KeyAuth | SessionAuth]:
    """For what is made in a team: the one that the address names, or any one of the caller's."""

    def door(request: HttpRequest, caller: Caller) -> None:
        if slug := request.GET.get("team"):
            team_for(caller, slug, to=action)
            return
        allowed_somewhere(caller, action)

    return [KeyAuth(door), SessionAuth(door)]


def to_one(find: Find, name: str, action: Action) -> list[KeyAuth | SessionAuth]:
    """For what acts on the thing that the address names as ``name``."""

    def door(request: HttpRequest, caller: Caller) -> None:
        assert request.resolver_match is not None
        find(caller, request.resolver_match.kwargs[name], to=action)

    return [KeyAuth(door), SessionAuth(door)]


def without_body(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse a body where none is read: who sends one expects something of it."""

    @wraps(endpoint)
    def refusing(request: HttpRequest, *given: Any, **named: Any) -> Any:
        sent = _sent(request)
        if sent not in (b"", b"{}", b"null"):
            shown = sent[:200].decode("utf-8", "replace")
            raise Invalid.field("body", shown, "this takes no body", "leave it out")
        return endpoint(request, *given, **named)

    return refusing


def _sent(request: HttpRequest) -> bytes:
    try:
        return request.body.strip()
    except RawPostDataException:  # the check of the CSRF token has read it as a form
        fields = {name: value for name, value in request.POST.items() if name != "csrfmiddlewaretoken"}
        return urlencode(fields | dict.fromkeys(request.FILES, "a file")).encode()
