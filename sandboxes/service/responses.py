"""Whatever goes wrong is answered as problem+json that names the field, the value and the remedy."""

import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic_core import PydanticSerializationError, to_json
from starlette.exceptions import HTTPException

from sandboxes.backends.remote.faults import MEDIA_TYPE, Fault, Problem, problem_of
from sandboxes.interface import SandboxFrozen, SandboxLost, SandboxUnavailable, SnapshotUnavailable
from sandboxes.service.hosted import RaisedBySandbox
from sandboxes.service.refusals import NoToken, Refusal, Unusable

log = logging.getLogger(__name__)
SHOWN_CHARACTERS = 200
_BOUNDS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}


def add_problems(app: FastAPI) -> None:
    app.add_exception_handler(Refusal, _refusal)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _ours)
    for known in (RaisedBySandbox, SandboxLost, SandboxFrozen, SandboxUnavailable, SnapshotUnavailable):
        app.add_exception_handler(known, of_the_sandbox)


def _answer(problem: Problem, headers: dict[str, str] | None = None) -> Response:
    content = problem.model_dump_json(exclude_defaults=True)
    return Response(content, problem.status, headers, media_type=MEDIA_TYPE)


def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if isinstance(error, NoToken):
        headers["WWW-Authenticate"] = "Bearer"
    return _answer(error.problem(), headers)


def of_the_sandbox(_: Request, error: Exception) -> Response:
    cause = error.error if isinstance(error, RaisedBySandbox) else error
    problem = problem_of(cause)
    if problem is None:
        raise cause
    return _answer(problem)


def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = Problem(type="about:blank", title=str(error.detail), status=error.status_code, detail=str(error.detail))
    return _answer(problem, dict(error.headers or {}))


def _ours(request: Request, error: Exception) -> Response:
    """The server logs it with its traceback; the caller learns no more than that the fault is not the caller's."""
    detail = "a fault of the service, which its log tells: report it, and try again later"
    return _answer(Problem(type="about:blank", title="Internal Server Error", status=500, detail=detail))


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [_fault(details) for details in error.errors()]
    return _refusal(request, Unusable("The request has values that cannot be used", *faults))


def _fault(details: Any) -> Fault:
    kind, context = details["type"], details.get("ctx", {})
    path = [str(part) for part in details["loc"] if part not in ("body", "query", "path")]
    value = context.get("shown", details.get("input"))
    if kind == "impossible_combination":
        path += context["field"].split(".")
        value = context["value"]
    return Fault(
        field=_sayable(".".join(path)) or "(body)",
        value="(missing)" if kind == "missing" else _shown(value),
        message=details["msg"],
        remedy=context.get("remedy") or _remedy(kind, context),
    )


def _remedy(kind: str, context: dict[str, Any]) -> str:
    match kind:
        case "extra_forbidden":
            return "remove it: no such field is known"
        case "missing":
            return "add it"
        case "literal_error":
            return f"use one of: {context['expected']}"
        case _ if bounds := [f"{word} {context[key]}" for key, word in _BOUNDS.items() if key in context]:
            return "use a value that is " + " and ".join(bounds)
        case _:
            return "see /openapi.json for what is expected"


def _shown(value: Any) -> Any:
    text = repr(value)
    if len(text) > SHOWN_CHARACTERS:
        return text[:SHOWN_CHARACTERS] + "..."
    try:
        to_json(value)
    except PydanticSerializationError:
        return text  # half a surrogate pair is no text that JSON could carry
    return value


def _sayable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
