"""Errors as problem+json (RFC 9457), with ``problems`` that name field, value and remedy."""

import json
import reprlib
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.http import HttpResponse


def problem(status: int, detail: str, *, problems: Sequence[dict[str, Any]] = ()) -> HttpResponse:
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    if problems:
        body["problems"] = [{**entry, "value": _shown(entry["value"])} for entry in problems]
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    text = json.dumps(body, cls=DjangoJSONEncoder, default=str)
    return HttpResponse(text, status=status, content_type="application/problem+json", headers=headers)


def _shown(value: Any) -> Any:
    """The value as it came, unless JSON has no word for it or it is so long that repeating it helps nobody."""
    try:
        json.dumps(value, cls=DjangoJSONEncoder, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return reprlib.repr(value)
    text = repr(value)
    return value if len(text) <= 200 else text[:197] + "..."
