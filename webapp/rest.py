"""The REST API: ``/api/v1``, described by ``/api/v1/openapi.json``.  Every error is problem+json."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError, ValidationErrorContext
from ninja.operation import Operation

from engine.spec.annotations import models_in
from engine.spec.problems import Problem, problems_in
from webapp.api.authentication import KeyAuth, SessionAuth
from webapp.api.document import ABOUT, completed
from webapp.api.problems import problem
from webapp.api.requests import StorableParser
from webapp.catalog.api import router as catalog
from webapp.conversations.api import router as conversations
from webapp.datasets.api import router as datasets
from webapp.editor.recipes_api import router as recipes
from webapp.egress.api import router as egress
from webapp.environments.api import router as environments
from webapp.experiments.api import router as experiments
from webapp.library.api import router as models
from webapp.packages.api import router as packages
from webapp.refusals import Invalid, Refused
from webapp.runs.api import router as runs
from webapp.security.api import router as security
from webapp.serving.api import router as serving
from webapp.task_sets.api import router as task_sets
from webapp.trajectories.api import router as trajectories


class Unprocessable(ValidationError):
    """Ninja's complaint about a request, with our ``Problem`` for each of pydantic's."""

    def __init__(self, contexts: list[ValidationErrorContext[Any]]) -> None:
        super().__init__([])
        self.problems = [problem for context in contexts for problem in _problems(context)]


def _problems(context: ValidationErrorContext[Any]) -> list[dict[str, Any]]:
    """Field paths as the sender wrote them: neither the body's nor a filter's own name in our code is part of them."""
    error, is_body = context.pydantic_validation_error, context.model.__ninja_param_source__ == "body"
    sent_models = [inner for field in context.model.model_fields.values() for inner in models_in(field.annotation)]
    if is_body and len(sent_models) == 1:
        return [problem.as_dict() for problem in problems_in(error, context.model, document=sent_models[0])]
    entries = [problem.as_dict() for problem in problems_in(error, context.model)]
    match context.model.__ninja_param_source__:
        case "body":
            return [entry | {"field": entry["field"].partition(".")[2]} for entry in entries]
        case "query":
            sent = {".".join(path): name for name, path in context.model.__ninja_flatten_map__.items()}
            return [entry | {"field": sent.get(entry["field"], entry["field"])} for entry in entries]
    return entries


class Api(NinjaAPI):
    def validation_error_from_error_contexts(
        self, error_contexts: list[ValidationErrorContext[Any]]
    ) -> ValidationError:
        return Unprocessable(error_contexts)

    def get_openapi_schema(self, **options: Any) -> Any:
        return completed(super().get_openapi_schema(**options))


def known_queries_only(run: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Refuse a query that the operation does not take: a misspelt filter would otherwise match everything."""
    operation: Operation = run.__self__  # type: ignore[attr-defined]
    queries = [model for model in operation.models if model.__ninja_param_source__ == "query"]
    known = {name for model in queries for name in model.__ninja_flatten_map__}

    @wraps(run)
    def refusing(request: HttpRequest, **path: Any) -> HttpResponse:
        unknown = [name for name in request.GET if name not in known]
        if not unknown:
            return run(request, **path)
        takes = f"use one of: {', '.join(sorted(known))}" if known else "leave it out"
        problems = [Problem(name, request.GET[name], "this is no query of this address", takes) for name in unknown]
        refusal = operation._run_checks(request)  # who may not come in is not told what there is
        return refusal or _refused(request, Invalid("the request cannot be used as it is", problems))

    return refusing


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
api.add_router("", conversations)
api.add_router("", serving)
api.add_router("", experiments)
api.add_router("", catalog)
api.add_router("", environments)
api.add_router("", recipes)
api.add_router("", models)
api.add_router("", datasets)
api.add_router("", task_sets)
api.add_router("", packages)
api.add_router("", egress)
api.add_decorator(known_queries_only, mode="view")


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
