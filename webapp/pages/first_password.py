"""Who signed in with a password that somebody else made chooses a new one before anything else."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

_PAGES_WITHOUT = ("/password", "/sign-out", "/static/", "/api/", "/ingest/")


class FirstPassword:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if not request.path.startswith(_PAGES_WITHOUT) and getattr(request.user, "must_change_password", False):
            return redirect("accounts:password")
        return self.get_response(request)
