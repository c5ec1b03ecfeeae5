"""The REST API: ``/api/v1``, described by ``/api/v1/openapi.json``.  Every error is problem+json."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError, ValidationErrorContext

from engine.spec.problems import problems_in
from webapp.api.authentication import KeyAuth, SessionAuth
from webapp.api.document import ABOUT, completed
from webapp.api.problems import problem
from webapp.api.requests import StorableParser
from webapp.catalog.api import router as catalog
from webapp.editor.recipes_api import router as recipes
from webapp.experiments.api import router as experiments
from webapp.refusals import Refused
from webapp.runs.api import router as runs
from webapp.security.api import router as security
from webapp.trajectories.api import router as trajectories


class Unprocessable(ValidationError):
    """Ninja's complaint about a request, with our ``Problem`` for each of pydantic's."""

    def __init__(self, contexts: list[ValidationErrorContext[Any]]) -> None:
        super().__init__([])
        self.problems = [problem for context in contexts for problem in _problems(context)]


def _problems(context: ValidationErrorContext[Any]) -> list[dict[str, Any]]:
    """Field paths as the sender wrote them: the body's own name in our code is not part of them."""
    found = [problem.as_dict() for problem in problems_in(context.pydantic_validation_error, context.model)]
    if context.model.__ninja_param_source__ == "body":
        found = [problem | {"field": problem["field"].partition(".")[2]} for problem in found]
    return found


class Api(NinjaAPI):
    def validation_error_from_error_contexts(
        self, error_contexts: list[ValidationErrorContext[Any]]
    ) -> ValidationError:
        return Unprocessable(error_contexts)

    def get_openapi_schema(self, **options: Any) -> Any:
        return completed(super().get_openapi_schema(**options))


# No docs page: ninja's loads its scripts from a CDN.
api = Api(
    title="Palestra",
    version="1",
    description=ABOUT,
    docs_url=None,
    auth=[KeyAuth(), SessionAuth()],
    parser=StorableParser(),
    urls_namespace="api",
)
api.add_router("", runs)
api.add_router("", trajectories)
api.add_router("", security)
api.add_router("", experiments)
api.add_router("", catalog)
api.add_router("", recipes)


@api.exception_handler(ValidationError)
def _unprocessable(_request: HttpRequest, error: Unprocessable) -> HttpResponse:
    return problem(422, "the request cannot be used as it is", problems=error.problems)


@api.exception_handler(Refused)
def _refused(_request: HttpRequest, error: Refused) -> HttpResponse:
    return problem(error.status, error.title, problems=[entry.as_dict() for entry in error.problems])


@api.exception_handler(Http404)
def _not_found(_request: HttpRequest, _error: Http404) -> HttpResponse:
    return problem(404, "there is nothing here, or it is not yours")


@api.exception_handler(PermissionDenied)
def _forbidden(_request: HttpRequest, error: PermissionDenied) -> HttpResponse:
    return problem(403, str(error))


@api.exception_handler(AuthenticationError)
def _unauthenticated(_request: HttpRequest, _error: AuthenticationError) -> HttpResponse:
    return problem(401, "send an API key as 'Authorization: Bearer pal_...'")


@api.exception_handler(HttpError)
def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    if isinstance(error.__cause__, Refused):  # the parser's, who can say what is wrong
        return _refused(request, error.__cause__)
    return problem(error.status_code, error.message)
