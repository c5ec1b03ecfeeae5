"""Errors below ``/api/`` that no endpoint made are problem+json too: unknown paths, wrong methods, failures."""

from collections.abc import Callable
from http import HTTPStatus

from django.http import HttpRequest, HttpResponse

from webapp.api.problems import problem

PREFIX = "/api/"
REMEDIES = {
    404: "there is nothing at this address: /api/v1/openapi.json names what there is",
    405: "this address does not take this method: see the header Allow",
}


class ApiErrors:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self.get_response(request)
        is_problem = answer.headers.get("Content-Type", "").startswith("application/problem+json")
        if answer.status_code < 400 or is_problem or not request.path_info.startswith(PREFIX):
            return answer
        status = answer.status_code
        plain = problem(status, REMEDIES.get(status, HTTPStatus(status).description or HTTPStatus(status).phrase))
        for name in ("Allow", "WWW-Authenticate"):
            if name in answer.headers:
                plain.headers[name] = answer.headers[name]
        return plain
