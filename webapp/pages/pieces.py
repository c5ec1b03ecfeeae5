"""Answers that htmx puts into a page that is already there."""

from collections.abc import Callable

from django.http import HttpResponse

from webapp.pages.requests import HtmxRequest


class Pieces:
    """Without a session a piece is refused with 401: the sign-in page would stand in its place.

    No browser keeps one: a piece has the address of its page, and "back" would show it as the page.
    """

    def __init__(self, get_response: Callable[[HtmxRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HtmxRequest) -> HttpResponse:
        response = self.get_response(request)
        if not request.htmx:
            return response
        if response.status_code == 302 and not request.user.is_authenticated:
            response = HttpResponse(status=401)
        response.headers["Cache-Control"] = "no-store"
        return response
